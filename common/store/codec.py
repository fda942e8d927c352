"""The value of an embedding: a checksum, then safetensors whose header names the key. Never pickle.

32 bytes   BLAKE3-256 of all that follows
8 bytes    length of the header, little-endian
header     JSON: tensor names, dtypes, shapes, and {"key": ...} as metadata
data       the tensors
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from triptych.errors import InternalError, TriptychError

CHECKSUM_BYTES = 32
# Enough for dozens of tensors; what `check_head` needs to see.
HEAD_BYTES = 4096
_LENGTH_BYTES = 8
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class BadValueError(TriptychError):
    """A stored value is damaged or belongs to something else; it is treated as a miss and never leaves the store."""


def pack(key: str, tensors: Mapping[str, Tensor]) -> bytes:
    """The value of `key`; every tensor has the picture's tokens as rows, (tokens, ...).

    What `safetensors.torch.save` writes, with one copy of the data instead of three.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    parts = [_bytes(tensors[name]) for name in names]
    header: dict[str, Any] = {"__metadata__": {"key": key}}
    end = 0
    for name, part in zip(names, parts, strict=True):
        start, end = end, end + len(part)
        kind, shape = _NAMES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    if CHECKSUM_BYTES + _LENGTH_BYTES + len(text) > HEAD_BYTES:
        raise InternalError("an embedding has too many tensors for the store's format")
    pieces: list[bytes | memoryview[int]] = [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts]
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return b"".join([hasher.digest(), *pieces])


def unpack(key: str, value: bytes, rows: int | None = None) -> dict[str, Tensor]:
    """The tensors, on the CPU; BadValueError unless checksum, key and (if given) number of rows are right."""
    check_head(key, value[:HEAD_BYTES], len(value), rows)
    if blake3(memoryview(value)[CHECKSUM_BYTES:]).digest() != value[:CHECKSUM_BYTES]:
        raise BadValueError("checksum")
    header, start = _header(value[:HEAD_BYTES])
    header.pop("__metadata__")
    # The one copy: tensors want memory that may be written to.
    data = bytearray(memoryview(value)[start:])
    try:
        return {name: _tensor(data, **tensor) for name, tensor in header.items()}
    except (TypeError, KeyError, ValueError, RuntimeError) as exc:
        raise BadValueError("format") from exc


def _bytes(tensor: Tensor) -> memoryview[int]:
    """The data of a CPU tensor, not copied when it is contiguous."""
    data: memoryview[int] = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def _tensor(data: bytearray, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Tensor:
    kind = _DTYPES[dtype]
    start, end = data_offsets
    count = math.prod(shape)
    if end - start != count * kind.itemsize:
        raise BadValueError("length")
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind, count=count, offset=start).reshape(shape)


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
