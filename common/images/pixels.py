"""Turns a loaded picture of any mode into upright RGB on white."""

from __future__ import annotations

import numpy as np
from PIL import ExifTags, Image

from triptych.errors import InvalidImageError

WHITE = (255, 255, 255)
MAX_EXIF_BYTES = 2**20
"""More is no orientation tag but a load: Pillow reads every value of a tag in Python."""
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SUPPORTED = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"}
# Pillow widens grey samples of 2 and 4 bits to 8, but not the transparent value that is compared with them.
_GREY_STEP = {"L;2": 85, "L;4": 17}


def transparent_value(image: Image.Image) -> int | tuple[int, ...] | bytes | None:
    """The transparent colour or palette alphas on the scale of the loaded samples; asked before loading."""
    value: int | tuple[int, ...] | bytes | None = image.info.get("transparency")
    tiles = getattr(image, "tile", None)
    raw = str(tiles[0].args) if tiles else ""
    if isinstance(value, int) and raw in _GREY_STEP:
        return value * _GREY_STEP[raw]
    if isinstance(value, tuple) and raw == "RGB;16B":
        return tuple(part >> 8 for part in value)
    return value


def upright_rgb(image: Image.Image, transparent: int | tuple[int, ...] | bytes | None) -> Image.Image:
    """RGB, alpha composited on white, turned as its EXIF says. InvalidImageError for samples without a known range."""
    orientation = _orientation(image)
    if image.mode.startswith("I;16"):
        image, transparent = _from_16_bit(image, transparent), None
    if image.mode not in _SUPPORTED:
        raise InvalidImageError(f"images of mode {image.mode} are not supported")
    rgb = _on_white(image, transparent)
    turn = _TRANSPOSE.get(orientation)
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(image: Image.Image) -> int:
    if len(image.info.get("exif", b"")) > MAX_EXIF_BYTES:
        return 1
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 damaged metadata fails in many ways and is no reason to refuse a picture
        return 1


def _from_16_bit(image: Image.Image, transparent: object) -> Image.Image:
    # Pillow clips instead of scaling. The upper byte is what it takes of 16-bit colour, so grey gets the same.
    samples = np.asarray(image).astype(np.uint16)
    grey = Image.fromarray((samples >> 8).astype(np.uint8))
    if not isinstance(transparent, int):
        return grey
    alpha = Image.fromarray(np.where(samples == transparent, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))


def _on_white(image: Image.Image, transparent: int | tuple[int, ...] | bytes | None) -> Image.Image:
    if transparent is None:
        image.info.pop("transparency", None)
    else:
        image.info["transparency"] = transparent
    if not image.has_transparency_data:
        return _converted(image, "RGB")
    rgba = _converted(image, "RGBA")
    canvas = Image.new("RGB", rgba.size, WHITE)
    canvas.paste(rgba, mask=rgba)
    return canvas


def _converted(image: Image.Image, mode: str) -> Image.Image:
    # Of a picture that has the mode already, Pillow would make a copy: 160 MB for 40 million pixels.
    return image if image.mode == mode else image.convert(mode)
