"""KV of preempted requests, kept in host memory until there is room again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from common.engine.kv_cache import KvCache
from common.engine.layout import blocks_for
from common.engine.sequence import Sequence
from services.decode.step import Copy
from triptych.errors import InternalError


@dataclass(slots=True)
class Parked:
    """`layers[i]`, once copied, holds layer i of `num_blocks` blocks, good for the first `num_computed` tokens."""

    num_blocks: int
    num_computed: int
    layers: tuple[memoryview, ...] = ()


class Parking:
    """Copies a sequence's blocks out of the pool and back; bounded in bytes, as swapping in vLLM is."""

    def __init__(self, cache: KvCache, capacity_bytes: int) -> None:
        self._cache = cache
        self._capacity_bytes = capacity_bytes
        self._parked: dict[Sequence, Parked] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return sum(parked.num_blocks for parked in self._parked.values()) * self._cache.layout.bytes_per_block

    def can_park(self, sequence: Sequence) -> bool:
        """True if there is room for the sequence's computed blocks."""
        size = self._computed_blocks(sequence) * self._cache.layout.bytes_per_block
        return self.size_bytes + size <= self._capacity_bytes

    def park(self, sequence: Sequence) -> Copy:
        """Take the computed blocks in; they are the caller's until the copy is made."""
        if not self.can_park(sequence):
            raise InternalError("the parking space is full")
        blocks = sequence.block_table[: self._computed_blocks(sequence)]
        parked = self._parked[sequence] = Parked(len(blocks), sequence.num_computed)
        return partial(self._copy_out, parked, blocks)

    def unpark(self, sequence: Sequence) -> Copy:
        """Give back what the sequence's new blocks do not have from the prefix cache; computed once it is copied."""
        parked = self._parked.pop(sequence)
        have = sequence.num_computed // self._cache.layout.block_size
        missing = sequence.block_table[have : parked.num_blocks]
        sequence.num_computed = parked.num_computed
        return partial(self._copy_back, parked, missing)

    def forget(self, sequence: Sequence) -> None:
        """Drop a parked copy; harmless when there is none."""
        self._parked.pop(sequence, None)

    def _copy_out(self, parked: Parked, blocks: list[int]) -> None:
        parked.layers = tuple(self._cache.export(layer, blocks) for layer in range(self._cache.layout.layers))

    def _copy_back(self, parked: Parked, missing: list[int]) -> None:
        skip = (parked.num_blocks - len(missing)) * self._cache.layout.bytes_per_layer_block
        for layer, data in enumerate(parked.layers if missing else ()):
            self._cache.load(range(layer, layer + 1), missing, data[skip:])

    def _computed_blocks(self, sequence: Sequence) -> int:
        return blocks_for(sequence.num_computed, self._cache.layout.block_size)
