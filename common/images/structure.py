"""A look at a file's structure before Pillow reads it: small files must not take long.

Pillow walks chunks, segments, sub-blocks and tag values in Python, and libjpeg passes over the whole picture once a
scan. A file of the allowed size that consists of nothing else keeps a core busy for minutes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from triptych.errors import InvalidImageError

MAX_PARTS = 10_000
MAX_SCANS = 32
MAX_RLE = 4_000_000
"""Pixels, and bytes, of a run-length encoded BMP: Pillow decodes those in Python."""
# A number in a TIFF tag costs this part of what a chunk or a segment costs.
_VALUES_PER_PART = 16
_BLOBS = (1, 2, 7)
_ALONE = {0x01, *range(0xD0, 0xDA)}
_START_OF_SCAN = 0xDA


def check_structure(data: bytes) -> None:
    """InvalidImageError for a file that is pieced together of too many parts; stops reading once it is certain."""
    if data.startswith(b"BM"):
        _check_bmp(data)
    for magics, walk in _WALKERS:
        if data.startswith(magics):
            _check_parts(walk(data))


def _check_parts(weights: Iterator[int]) -> None:
    total = 0
    for weight in weights:
        total += weight
        if total > MAX_PARTS:
            limits = f"{MAX_PARTS} pieces of data, or {MAX_SCANS} scans"
            raise InvalidImageError(f"the image's file has too many parts; the limit is {limits}")


def _png(data: bytes) -> Iterator[int]:
    at = 8
    while at + 8 <= len(data):
        yield 1
        at += 12 + int.from_bytes(data[at : at + 4], "big")


def _jpeg(data: bytes) -> Iterator[int]:
    at = 2
    while at + 4 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0, 0xFF):
            at += 1
        elif marker == _START_OF_SCAN:
            # Inside a scan 0xFF is followed by 0 or by another marker, so this counts scans and nothing else.
            yield data.count(b"\xff\xda", at) * (MAX_PARTS // MAX_SCANS)
            return
        else:
            at += 2 if marker in _ALONE else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield 1


def _gif(data: bytes) -> Iterator[int]:
    at = 13 + (3 << (data[10] & 7) + 1 if len(data) > 10 and data[10] & 0x80 else 0)
    while at < len(data) and data[at] not in b",;":
        yield 1
        if data[at] != ord("!"):
            at += 1
            continue
        at += 2
        while at < len(data) and data[at]:
            yield 1
            at += 1 + data[at]
        at += 1


def _tiff(data: bytes) -> Iterator[int]:
    order, big = ("<" if data.startswith(b"II") else ">"), data[2:3] == b"+"
    start, count, entry, width = ("Q", "Q", "HHQ", 20) if big else ("L", "H", "HHL", 12)
    try:
        at = struct.unpack_from(order + start, data, 8 if big else 4)[0]
        tags = struct.unpack_from(order + count, data, at)[0]
        at += struct.calcsize(order + count)
        for place in range(at, at + tags * width, width):
            _, kind, values = struct.unpack_from(order + entry, data, place)
            yield 1 if kind in _BLOBS else 1 + values // _VALUES_PER_PART
    except (struct.error, OverflowError):
        return  # cut off, or beyond any file: Pillow says so


def _check_bmp(data: bytes) -> None:
    if len(data) < 34 or int.from_bytes(data[14:18], "little") < 40:
        return
    width, height, _, _, compression = struct.unpack_from("<iiHHI", data, 18)
    if compression in (1, 2) and max(abs(width * height), len(data)) > MAX_RLE:
        raise InvalidImageError(f"run-length encoded BMP files are read up to {MAX_RLE} pixels and bytes")


_WALKERS: tuple[tuple[tuple[bytes, ...], Callable[[bytes], Iterator[int]]], ...] = (
    ((b"\x89PNG\r\n\x1a\n",), _png),
    ((b"\xff\xd8",), _jpeg),
    ((b"GIF87a", b"GIF89a"), _gif),
    ((b"II", b"MM"), _tiff),
)
