"""Reads the headers of safetensors files, which say where each tensor's bytes lie. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.families.checkpoint import read_json
from triptych.errors import CheckpointError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit; more means that the file is something else."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: bytes `begin` to `end` counted from the start of `file`."""

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_headers(model_dir: Path) -> dict[str, StoredTensor]:
    """Key -> tensor of all weight files of a checkpoint; no tensor is read. Raises CheckpointError."""
    index = model_dir / "model.safetensors.index.json"
    if not index.exists():
        return _read_header(model_dir / "model.safetensors")
    weight_map = read_json(index).get("weight_map", {})
    found: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        found |= _read_header(model_dir / shard)
    if missing := sorted(set(weight_map) - set(found)):
        raise CheckpointError(f"{index} lists {missing[0]}, which is not in {weight_map[missing[0]]}")
    return found


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
            header = json.loads(content.read(min(length, _MAX_HEADER_BYTES)))
        start = _LENGTH_BYTES + length
        header.pop("__metadata__", None)
        found = {key: _tensor(file, key, entry, start) for key, entry in header.items()}
    except FileNotFoundError as error:
        raise CheckpointError(f"the model directory {file.parent} has no {file.name}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error!r}") from error
    if max((tensor.end for tensor in found.values()), default=0) > file.stat().st_size:
        raise CheckpointError(f"{file} is shorter than its header says")
    return found


def _tensor(file: Path, key: str, entry: dict[str, Any], start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    return StoredTensor(file, key, entry["dtype"], tuple(entry["shape"]), start + begin, start + end)
