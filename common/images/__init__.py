"""From uploaded bytes to the pixels that everything else speaks of. Pillow only; no torch."""

from common.images.decode import DecodedImage, decode_image
from common.images.limits import ImageLimits
from common.images.looks import look_of

__all__ = ["DecodedImage", "ImageLimits", "decode_image", "look_of"]
