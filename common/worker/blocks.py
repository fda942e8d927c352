"""Gives KV blocks to sequences and takes them back, never from under a running step."""

from __future__ import annotations

from collections.abc import Iterable

from common.engine.blocks import BlockPool
from common.engine.layout import blocks_for
from common.engine.sequence import Sequence


class SequenceBlocks:
    """Owner of the block tables of one worker's sequences.

    A request may be cancelled while the step that writes its blocks runs in another thread; its blocks are then
    freed when that step ends. Freeing twice is harmless.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self._in_step: set[Sequence] = set()
        self._doomed: set[Sequence] = set()

    def can_ever_allocate(self, tokens: int) -> bool:
        """True if a pool with nobody else in it could hold `tokens` tokens."""
        return blocks_for(tokens, self.block_size) <= self.pool.num_blocks

    def can_allocate(self, sequence: Sequence, tokens: int) -> bool:
        """True if the blocks that `sequence` lacks for `tokens` tokens are free now."""
        return self.pool.can_allocate(sequence.missing_blocks(tokens, self.block_size))

    def allocate(self, sequence: Sequence, tokens: int) -> None:
        """Extend the block table to `tokens` tokens."""
        sequence.block_table += self.pool.allocate(sequence.missing_blocks(tokens, self.block_size))

    def free(self, sequence: Sequence) -> None:
        """Take all blocks back, at once or when the running step ends."""
        if sequence in self._in_step:
            self._doomed.add(sequence)
        else:
            self.pool.free(sequence.block_table)
            sequence.block_table = []

    def begin_step(self, sequences: Iterable[Sequence]) -> None:
        """From now on a step may write the blocks of these."""
        self._in_step = set(sequences)

    def end_step(self) -> None:
        """The step is over: free what was given up meanwhile."""
        self._in_step = set()
        doomed, self._doomed = self._doomed, set()
        for sequence in doomed:
            self.free(sequence)
