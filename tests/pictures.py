"""Deterministic pictures for tests."""

from __future__ import annotations

import numpy as np
from PIL import Image


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """An RGB picture of random blocks: unlike white noise, it survives being resized."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)
