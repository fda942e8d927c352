"""The identity of a half of a checkpoint: what the keys of the embedding and KV caches start from. Imports no torch."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from blake3 import blake3

from common.families.canonical import canonical_json
from common.families.checkpoint import identifying_config
from common.models.headers import StoredTensor
from common.models.weights import Stage, stored_tensors
from triptych.digests import digest


def model_fingerprint(model_dir: Path, stage: Stage) -> str:
    """64 hex digits over the config and every tensor that `stage` reads: name, dtype, shape and bytes.

    Tensors rather than files, so that the other half in the same file is not read and does not count, and the same
    weights cut into other shards keep their cache entries. Reads the half once, on all cores. Raises CheckpointError.
    """
    fields = [stage.encode(), canonical_json(identifying_config(model_dir))]
    stored = stored_tensors(model_dir, stage)
    digests = dict(_tensor_digests(stored.values()))
    for name, tensor in stored.items():
        fields += [name.encode(), f"{tensor.dtype}{list(tensor.shape)}".encode(), digests[tensor.key]]
    return digest("triptych.model.v1", *fields)


def _tensor_digests(tensors: Iterable[StoredTensor]) -> Iterator[tuple[str, bytes]]:
    """(key, digest of the bytes), opening each file once."""

    def by_place(tensor: StoredTensor) -> tuple[Path, int]:
        return tensor.file, tensor.begin

    for file, group in groupby(sorted(tensors, key=by_place), key=lambda tensor: tensor.file):
        with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for tensor in group:
                with memoryview(mapped)[tensor.begin : tensor.end] as data:
                    yield tensor.key, blake3(max_threads=blake3.AUTO).update(data).digest()
