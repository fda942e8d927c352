"""Opens hostile files with Pillow: fixed formats, bounded memory, every failure one of ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL import Image, PngImagePlugin, UnidentifiedImageError

from common.images.limits import PIXEL_CEILING, ImageLimits
from common.images.structure import check_structure
from triptych.errors import InvalidImageError, TriptychError

# Pillow knows forty formats; some run other programs, most are attack surface.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_MAX_TEXT_BYTES = 4 * 2**20

# Pillow is guarded once for the whole process. Its plugins allocate frames while they read headers, and only this
# stops them; what it would merely warn of is an error here. Sloppy metadata is nobody's concern.
Image.MAX_IMAGE_PIXELS = PIXEL_CEILING
PngImagePlugin.MAX_TEXT_MEMORY = _MAX_TEXT_BYTES
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


def open_image(data: bytes, limits: ImageLimits) -> Image.Image:
    """The picture with only its header read and its size checked; the format is what the bytes say."""
    limits.check_bytes(len(data))
    check_structure(data)
    with pillow_errors(limits):
        image = Image.open(BytesIO(data), formats=FORMATS)
        limits.check_size(*image.size)
        return image


def load_pixels(image: Image.Image, limits: ImageLimits) -> None:
    """Decode the first frame; InvalidImageError when the file is truncated or damaged."""
    with pillow_errors(limits):
        image.load()
    # A few formats learn their size only now.
    limits.check_size(*image.size)


@contextmanager
def pillow_errors(limits: ImageLimits) -> Iterator[None]:
    """Whatever Pillow raises in the block is InvalidImageError; ours pass."""
    try:
        yield
    except TriptychError:
        raise
    except UnidentifiedImageError as exc:
        raise InvalidImageError(f"the bytes are no readable image; accepted are {', '.join(FORMATS)}") from exc
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise InvalidImageError(f"the image has too many pixels; the limit is {limits.max_pixels}") from exc
    except Exception as exc:
        # Pillow's plugins raise whatever damaged bytes lead them to: OSError, SyntaxError, struct.error, KeyError.
        raise InvalidImageError(f"the image is truncated or damaged ({type(exc).__name__})") from exc
