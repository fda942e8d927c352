"""Values that were checked, and the memory that keeps the last of them: the tier in front of the store."""

from __future__ import annotations

import asyncio

from blake3 import blake3
from torch import Tensor

from common.store import codec
from common.store.counters import StoreCounters
from common.store.memory import MemoryTier
from common.store.packed import CHECKSUM_BYTES

# Up to here a change of threads, on a busy machine, takes longer than the work.
LARGE_BYTES = 2**24
# A third of a millisecond of the event loop.
PIECE_BYTES = 2**20


class Verified:
    """Tensors by key; `counters` says what was found."""

    def __init__(self, counters: StoreCounters, max_bytes: int) -> None:
        self._counters = counters
        self._memory: MemoryTier[dict[str, Tensor]] = MemoryTier(max_bytes)

    def recall(self, key: str, rows: int | None = None) -> dict[str, Tensor] | None:
        """The tensors if this process remembers them."""
        tensors = self._memory.get(key)
        if tensors is None or any(rows not in (None, len(tensor)) for tensor in tensors.values()):
            return None
        self._counters.memory_hits += 1
        return tensors

    async def adopt(self, key: str, value: bytes, rows: int | None = None) -> dict[str, Tensor] | None:
        """Verify a packed value, from wherever it came, and remember it; None, and counted, when it is bad."""
        try:
            tensors = await _unpack(key, value, rows)
        except codec.BadValueError:
            self._counters.bad()
            return None
        self._counters.read(len(value))
        self._memory.put(key, tensors, len(value))
        return tensors


async def _unpack(key: str, value: bytes, rows: int | None) -> dict[str, Tensor]:
    if len(value) > LARGE_BYTES:
        return await asyncio.to_thread(codec.unpack, key, value, rows)
    return codec.unpack(key, value, rows, await _checksum(memoryview(value)[CHECKSUM_BYTES:]))


async def _checksum(body: memoryview) -> bytes:
    """BLAKE3-256, letting others run between the pieces."""
    hasher = blake3()
    for start in range(0, len(body), PIECE_BYTES):
        if start:
            await asyncio.sleep(0)
        hasher.update(body[start : start + PIECE_BYTES])
    return bytes(hasher.digest())
