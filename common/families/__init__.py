"""What differs between model families before any tensor exists: image sizes, placeholders, positions.

Nothing here imports torch or a model class of transformers, so the router can use it.
"""

from common.families.base import Family, ImageLayout, ImageMarkup, ImageSpan, Pixels, Positions
from common.families.registry import SUPPORTED, load_family

__all__ = ["SUPPORTED", "Family", "ImageLayout", "ImageMarkup", "ImageSpan", "Pixels", "Positions", "load_family"]
