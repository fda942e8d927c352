"""Decodes an uploaded file: the same pixels, size and image id in the router and in the encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from common.identity import image_id_of_rows
from common.images.limits import ImageLimits
from common.images.pixels import transparent_value, upright_rgb
from common.images.reader import load_pixels, open_image, pillow_errors

_ROWS_BYTES = 2**20


@dataclass(frozen=True)
class DecodedImage:
    """Upright RGB `image` of `width` x `height` pixels, with the id of exactly these pixels."""

    image: Image.Image
    width: int
    height: int
    image_id: str


def decode_image(data: bytes, limits: ImageLimits) -> DecodedImage:
    """Decode PNG, JPEG, WebP, GIF, BMP or TIFF; of an animation the first frame. CPU only: run it in a thread.

    Lossless files of one picture give the same result, whatever their format, palette, bit depth or orientation tag.
    InvalidImageError, with a sentence that names the limit, for everything else.
    """
    image = open_image(data, limits)
    transparent = transparent_value(image)
    load_pixels(image, limits)
    with pillow_errors(limits):
        rgb = upright_rgb(image, transparent)
    width, height = rgb.size
    return DecodedImage(rgb, width, height, image_id_of_rows(width, height, _rows(rgb)))


def _rows(rgb: Image.Image) -> Iterator[bytes]:
    """All pixels, about `_ROWS_BYTES` at a time."""
    step = max(1, _ROWS_BYTES // (3 * rgb.width))
    for top in range(0, rgb.height, step):
        yield rgb.crop((0, top, rgb.width, min(top + step, rgb.height))).tobytes()
