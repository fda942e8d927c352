"""What a picture may be; checked from its header, before memory is taken for its pixels."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.errors import ConfigError, InvalidImageError

# Pillow's own guard is process-wide, so it gets this bound and the settings stay below it.
PIXEL_CEILING = 64_000_000


@dataclass(frozen=True)
class ImageLimits:
    """Limits of one picture: bytes of the file, pixels in all, pixels of a side, longer side over shorter side."""

    max_bytes: int = 20 * 2**20
    max_pixels: int = 40_000_000
    max_side: int = 16_384
    max_aspect: int = 200

    def __post_init__(self) -> None:
        """ConfigError when a limit makes no sense."""
        if min(self.max_bytes, self.max_pixels, self.max_side, self.max_aspect) < 1:
            raise ConfigError("every limit of images is at least 1")
        if self.max_pixels > PIXEL_CEILING:
            raise ConfigError(f"the limit of pixels cannot exceed {PIXEL_CEILING}")

    def check_bytes(self, size_bytes: int) -> None:
        """InvalidImageError for a file that is empty or too large."""
        if size_bytes == 0:
            raise InvalidImageError("the image is empty")
        if size_bytes > self.max_bytes:
            raise InvalidImageError(f"the image has {size_bytes} bytes; the limit is {self.max_bytes}")

    def check_size(self, width: int, height: int) -> None:
        """InvalidImageError for a picture without pixels, with too many, or too narrow; alike for both axes."""
        shape = f"the image has {width}x{height} pixels"
        if min(width, height) < 1:
            raise InvalidImageError(shape)
        if max(width, height) > self.max_aspect * min(width, height):
            raise InvalidImageError(f"{shape}; the limit of the aspect ratio is {self.max_aspect}:1")
        if max(width, height) > self.max_side:
            raise InvalidImageError(f"{shape}; the limit of a side is {self.max_side} pixels")
        if width * height > self.max_pixels:
            raise InvalidImageError(f"{shape}; the limit is {self.max_pixels} pixels in all")
