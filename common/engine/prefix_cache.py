"""Which blocks hold which prefix, and which of them may be taken when room is needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from common.engine.blocks import BlockPool
from triptych.errors import InternalError

Change = Callable[[bytes, bool], None]
"""Told of every block hash that can be found from now on (True) or no longer (False)."""


class PrefixCache:
    """A `BlockPool` whose blocks can be found again by hash after their last owner has left.

    The cache itself is one owner of every indexed block. A block that has no other owner is *cached*: it stays until
    room is needed, and the least recently used goes first. Owners give blocks back deepest first, so of a prefix that
    was used as a whole the leaves are evicted before what they depend on. Every call costs O(blocks named).

    `version` counts the changes of the index, one for each hash. Whoever mirrors it takes `snapshot` once and then
    every change; both happen in one call stack, so none falls in between.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        # Least recently used first. Not a plain dict: taking its first key again and again is quadratic.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._listeners: list[Callable[[], None]] = []
        self._mirrors: list[Change] = []
        self.evictions = 0
        self.version = 0

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever blocks were given back: somebody may be waiting for room."""
        self._listeners.append(listener)

    def on_change(self, mirror: Change) -> None:
        """Call `mirror(block_hash, added)` for each change of the index, after it; O(1) each. It must not block."""
        self._mirrors.append(mirror)

    def stop_change(self, mirror: Change) -> None:
        """Undo `on_change`; harmless when it was not called."""
        if mirror in self._mirrors:
            self._mirrors.remove(mirror)

    def snapshot(self) -> tuple[int, list[bytes]]:
        """`version` and every hash that can be found now."""
        return self.version, list(self._block_of)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, the cached ones included."""
        return self._pool.num_free + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks with content and without an owner."""
        return len(self._cached)

    @property
    def num_in_use(self) -> int:
        """Blocks that somebody holds."""
        return self._pool.num_used - len(self._cached)

    def can_allocate(self, count: int) -> bool:
        """True if `count` blocks are free or can be evicted."""
        return 0 <= count <= self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks without content, evicting cached ones as needed."""
        if not self.can_allocate(count):
            raise InternalError(f"{count} blocks asked for, {self.num_free} free or cached")
        while self._pool.num_free < count:
            self._evict()
        return self._pool.allocate(count)

    def can_share_and_allocate(self, shared: Sequence[int], count: int) -> bool:
        """True if `count` blocks could still be allocated after `share(shared)`, which keeps those from eviction."""
        return count <= self.num_free - sum(block in self._cached for block in shared)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known run of `hashes` from its beginning. `share` them before anything else."""
        found: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Sequence[int]) -> None:
        """Become one more owner of indexed blocks."""
        self._pool.acquire(blocks)
        for block in blocks:
            self._cached.pop(block, None)

    def publish(self, block: int, block_hash: bytes) -> None:
        """Make an owned, completely computed block findable. Of two equal ones the first stays the one found."""
        if block_hash in self._block_of or block in self._hash_of:
            return
        self._pool.acquire([block])
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash
        self._changed(block_hash, added=True)

    def is_private(self, block: int) -> bool:
        """True if the block has one owner and cannot be found: it may still be written."""
        return block not in self._hash_of and self._pool.references(block) == 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give back blocks of one sequence, in its order; indexed ones become cached when nobody else has them."""
        self._pool.free(blocks)
        for block in reversed(blocks):
            if block in self._hash_of and self._pool.references(block) == 1:
                self._cached[block] = None
        for listener in self._listeners:
            listener()

    def validate(self) -> None:
        """InternalError unless index, order and owners agree. O(pool): for tests and teardown."""
        self._pool.validate()
        if {block: key for key, block in self._block_of.items()} != self._hash_of:
            raise InternalError("the two directions of the prefix index differ")
        unowned = {block for block in self._hash_of if self._pool.references(block) == 1}
        if unowned != set(self._cached):
            raise InternalError(f"cached blocks are listed wrongly: {sorted(unowned ^ set(self._cached))[:8]}")

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        self._pool.free([block])
        self.evictions += 1
        self._changed(block_hash, added=False)

    def _changed(self, block_hash: bytes, added: bool) -> None:
        self.version += 1
        for mirror in self._mirrors:
            mirror(block_hash, added)
