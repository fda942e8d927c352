"""The value of an embedding: a checksum, then safetensors whose header names the key. Never pickle.

32 bytes   BLAKE3-256 of all that follows
8 bytes    length of the header, little-endian
header     JSON: tensor names, dtypes, shapes, and {"key": ...} as metadata
data       the tensors
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from triptych.errors import InternalError, TriptychError

CHECKSUM_BYTES = 32
# Enough for dozens of tensors; what `check_head` needs to see.
HEAD_BYTES = 4096
_LENGTH_BYTES = 8


class BadValueError(TriptychError):
    """A stored value is damaged or belongs to something else; it is treated as a miss and never leaves the store."""


def pack(key: str, tensors: Mapping[str, Tensor]) -> bytes:
    """The value of `key`; every tensor has the picture's tokens as rows, (tokens, ...)."""
    body = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"key": key})
    if CHECKSUM_BYTES + _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little") > HEAD_BYTES:
        raise InternalError("an embedding has too many tensors for the store's format")
    return blake3(body).digest() + body


def unpack(key: str, value: bytes, rows: int | None = None) -> dict[str, Tensor]:
    """The tensors, on the CPU; BadValueError unless checksum, key and (if given) number of rows are right."""
    check_head(key, value[:HEAD_BYTES], len(value), rows)
    body = value[CHECKSUM_BYTES:]
    if blake3(body).digest() != value[:CHECKSUM_BYTES]:
        raise BadValueError("checksum")
    try:
        return load(body)
    except (SafetensorError, ValueError, KeyError) as exc:
        raise BadValueError("format") from exc


def check_head(key: str, head: bytes, size: int, rows: int | None = None) -> None:
    """Check what the first bytes of a value of `size` bytes tell; BadValueError. The data is not looked at."""
    header, start = _header(head)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("key") != key:
        raise BadValueError("key")
    try:
        end = max(tensor["data_offsets"][1] for tensor in header.values())
        lengths = {tensor["shape"][0] for tensor in header.values()}
    except (TypeError, KeyError, IndexError, ValueError) as exc:
        raise BadValueError("format") from exc
    if start + end != size:
        raise BadValueError("length")
    if rows is not None and lengths != {rows}:
        raise BadValueError("rows")


def _header(head: bytes) -> tuple[dict[str, Any], int]:
    at = CHECKSUM_BYTES + _LENGTH_BYTES
    end = at + int.from_bytes(head[CHECKSUM_BYTES:at], "little")
    try:
        header = json.loads(head[at:end])
    except ValueError as exc:
        raise BadValueError("format") from exc
    if not isinstance(header, dict):
        raise BadValueError("format")
    return header, end
