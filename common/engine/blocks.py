"""The pool of KV blocks: which block numbers are free, and how many owners each used one has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from triptych.errors import ConfigError, InternalError


class BlockPool:
    """Reference-counted block numbers 0..num_blocks-1; it knows no tensors, sequences or hashes.

    Test before act: ask `can_allocate`, then `allocate`. Every call costs O(blocks named), never O(pool). The free list
    is last in, first out, so that memory just used is used again. (Block tables: vLLM, PagedAttention, SOSP 2023.)
    Calls that break the rules raise InternalError and change nothing, for they are bugs of the caller.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a KV pool needs at least one block, not {num_blocks}", param="blocks")
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, free or not."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one owner."""
        return self.num_blocks - self.num_free

    def references(self, block: int) -> int:
        """Number of owners of `block`; 0 when it is free."""
        self._check_known(block)
        return self._references[block]

    def can_allocate(self, count: int) -> bool:
        """True if `count` blocks are free now."""
        return 0 <= count <= self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one owner: the caller."""
        if not self.can_allocate(count):
            raise InternalError(f"{count} blocks asked for, {self.num_free} free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Share used blocks: one more owner for each entry (an entry named twice gets two)."""
        shared = list(blocks)
        for block in shared:
            if self.references(block) == 0:
                raise InternalError(f"block {block} is free and cannot be shared")
        for block in shared:
            self._references[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Drop one owner for each entry; a block without owners is free again."""
        dropped = Counter(blocks)
        for block, count in dropped.items():
            if self.references(block) < count:
                raise InternalError(f"block {block} is freed {count} times but has {self.references(block)} owners")
        for block, count in dropped.items():
            self._references[block] -= count
            if self._references[block] == 0:
                self._free.append(block)

    def validate(self) -> None:
        """Raise InternalError unless every block is either free once or owned. O(pool): for tests and teardown."""
        if len(set(self._free)) != len(self._free):
            raise InternalError("a block is on the free list twice")
        for block, owners in enumerate(self._references):
            if owners < 0:
                raise InternalError(f"block {block} has {owners} owners")
        unowned = {block for block, owners in enumerate(self._references) if owners == 0}
        if unowned != set(self._free):
            raise InternalError(f"blocks neither free nor owned, or both: {sorted(unowned ^ set(self._free))[:8]}")

    def _check_known(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise InternalError(f"block {block} is not in a pool of {self.num_blocks}")
