"""Deterministic pictures for tests, and their files."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """An RGB picture of random blocks: unlike white noise, it survives being resized."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, colour: int, rows: list[bytes], **extra: bytes) -> bytes:
    """A PNG as the standard says it, for forms that Pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [chunk(name.encode(), data) for name, data in extra.items()]
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
