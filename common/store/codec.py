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

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.store.packed import CHECKSUM_BYTES, Packed, checksum_of
from triptych.errors import TriptychError

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


def pack(key: str, tensors: Mapping[str, Tensor], rows: int | None = None) -> Packed:
    """The value of `key`; every tensor has the picture's tokens as rows, (tokens, ...), and does not change any more.

    What `safetensors.torch.save` writes. BadValueError when `unpack` could not read it.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    text = _header_text(key, {name: tensors[name] for name in names})
    head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    packed = Packed((head, *(_bytes(tensors[name]) for name in names)))
    check_head(key, (bytes(CHECKSUM_BYTES) + head)[:HEAD_BYTES], len(packed), rows)
    return packed


def _header_text(key: str, tensors: Mapping[str, Tensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"key": key}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise BadValueError("dtype")
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _LENGTH_BYTES)


def unpack(key: str, value: bytes, rows: int | None = None, checksum: bytes | None = None) -> dict[str, Tensor]:
    """The tensors, on the CPU; BadValueError unless checksum, key and (if given) number of rows are right.

    They are views of `value`, which nobody may change, and keep it alive. `checksum` is that of
    what follows the first 32 bytes, if the caller has computed it.
    """
    check_head(key, value[:HEAD_BYTES], len(value), rows)
    if (checksum or checksum_of([memoryview(value)[CHECKSUM_BYTES:]])) != value[:CHECKSUM_BYTES]:
        raise BadValueError("checksum")
    header, start = _header(value[:HEAD_BYTES])
    header.pop("__metadata__")
    data = np.asarray(_Borrowed(value, start))
    try:
        return {name: _tensor(data, **tensor) for name, tensor in header.items()}
    except (TypeError, KeyError, ValueError, RuntimeError) as exc:
        raise BadValueError("format") from exc


def _bytes(tensor: Tensor) -> memoryview:
    """The data of a CPU tensor, not copied when it is contiguous."""
    data: memoryview = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


class _Borrowed:
    """Memory of a `bytes` object under numpy's protocol, said to be writable, and kept alive by whoever uses it.

    torch wants memory that may be written to. Nobody writes; so the copy into fresh memory, which takes longer than the
    checksum, is saved.
    """

    def __init__(self, value: bytes, start: int) -> None:
        self._owner = value
        address = np.frombuffer(value, np.uint8).ctypes.data + start
        shape = (len(value) - start,)
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}


def _tensor(data: npt.NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Tensor:
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
