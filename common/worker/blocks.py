"""Gives KV blocks to sequences and takes them back, never from under a running step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from common.engine.chunking import cut_before
from common.engine.layout import blocks_for
from common.engine.prefix_cache import PrefixCache
from common.engine.sequence import Sequence
from triptych.errors import InternalError


class SequenceBlocks:
    """Owner of the block tables of one worker's sequences.

    A sequence begins with the cached blocks of its longest known prefix, and its full blocks become findable as they
    are computed. A request may be cancelled while the step that writes its blocks runs in another thread; its blocks
    are then freed when that step ends. Freeing twice is harmless.
    """

    def __init__(self, cache: PrefixCache, block_size: int) -> None:
        self.cache = cache
        self.block_size = block_size
        # How many running steps write a sequence's blocks; a worker with two engines has two at a time.
        self._in_step: Counter[Sequence] = Counter()
        self._doomed: dict[Sequence, None] = {}

    def can_ever_admit(self, tokens: int) -> bool:
        """True if a pool with nobody else in it could hold `tokens` tokens."""
        return blocks_for(tokens, self.block_size) <= self.cache.num_blocks

    def can_admit(self, sequence: Sequence, tokens: int, reuse: int, spare: int = 0) -> bool:
        """True if `admit` with the same arguments would find room now and leave `spare` blocks."""
        shared = self._match(sequence, reuse)
        return self.cache.can_share_and_allocate(shared, blocks_for(tokens, self.block_size) - len(shared) + spare)

    def admit(self, sequence: Sequence, tokens: int, reuse: int) -> None:
        """Give an empty sequence blocks for `tokens` tokens; up to `reuse` leading ones may come computed."""
        shared = self._match(sequence, reuse)
        self.cache.share(shared)
        sequence.block_table = shared + self.cache.allocate(blocks_for(tokens, self.block_size) - len(shared))
        sequence.num_computed = len(shared) * self.block_size

    def usable(self, sequence: Sequence, count: int) -> int:
        """How many of its first `count` blocks a sequence may reuse: they never end inside an image kept whole."""
        tokens = count * self.block_size
        while (cut := cut_before(tokens, sequence.uncut)) != tokens:
            tokens = cut // self.block_size * self.block_size
        return tokens // self.block_size

    def can_grow(self, sequence: Sequence, tokens: int) -> bool:
        """True if `grow` would find room now."""
        return self.cache.can_allocate(sequence.missing_blocks(tokens, self.block_size))

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Extend the block table to `tokens` tokens."""
        sequence.block_table += self.cache.allocate(sequence.missing_blocks(tokens, self.block_size))

    def publish(self, sequence: Sequence, since: int) -> None:
        """Make the blocks findable that became full since `since` tokens were computed."""
        if sequence.chain is None:
            return
        self._extend(sequence, sequence.num_computed)
        for index in range(since // self.block_size, sequence.num_computed // self.block_size):
            self.cache.publish(sequence.block_table[index], sequence.chain.hashes[index])

    def free(self, sequence: Sequence) -> None:
        """Take all blocks back, at once or when the running step ends."""
        if self._in_step[sequence]:
            self._doomed[sequence] = None
        else:
            self.cache.free(sequence.block_table)
            sequence.block_table = []

    def begin_step(self, sequences: Iterable[Sequence]) -> None:
        """From now on a step may write the blocks of these."""
        self._in_step.update(sequences)

    def end_step(self, sequences: Iterable[Sequence]) -> None:
        """The step is over: free what was given up meanwhile."""
        self._in_step -= Counter(sequences)
        for sequence in [each for each in self._doomed if not self._in_step[each]]:
            del self._doomed[sequence]
            self.free(sequence)

    def validate(self, sequences: Iterable[Sequence]) -> None:
        """InternalError unless what these will still write is theirs alone. O(pool): for tests, between steps.

        Blocks that are shared or findable are complete, so sharing needs no copy on write: nobody writes there again.
        """
        self.cache.validate()
        for sequence in sequences:
            rest = sequence.block_table[sequence.num_computed // self.block_size :]
            if shared := [block for block in rest if not self.cache.is_private(block)]:
                raise InternalError(f"blocks {shared[:8]} of {sequence.request_id} are shared and not complete")

    def _match(self, sequence: Sequence, reuse: int) -> list[int]:
        if sequence.chain is None:
            return []
        self._extend(sequence, reuse)
        found = self.cache.match(sequence.chain.hashes[: reuse // self.block_size])
        return found[: self.usable(sequence, len(found))]

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        chain = sequence.chain
        if chain is not None and chain.num_tokens + self.block_size <= tokens:
            chain.extend(sequence.token_ids(chain.num_tokens, tokens))
