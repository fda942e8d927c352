"""What one subscriber is still to be told of a worker's cached blocks: a snapshot, then changes. Awaits nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from triptych.v1.worker_pb2 import WatchCacheResponse

# 8,192 hashes are 280 kB, far below the message limit.
CHUNK_HASHES = 8192
BACKLOG = 1024
Change = Callable[[bytes, bool], None]


class CacheIndex(Protocol):
    """Where the hashes come from: `common.engine.prefix_cache.PrefixCache`."""

    def snapshot(self) -> tuple[int, list[bytes]]:
        """A version and every hash that can be found now."""

    def on_change(self, mirror: Change) -> None:
        """Call `mirror(block_hash, added)` for each change from now on."""

    def stop_change(self, mirror: Change) -> None:
        """Undo `on_change`; harmless twice."""


class NoCache:
    """The index of a worker without a KV pool."""

    def snapshot(self) -> tuple[int, list[bytes]]:
        """See `CacheIndex`."""
        return 0, []

    def on_change(self, mirror: Change) -> None:
        """See `CacheIndex`."""

    def stop_change(self, mirror: Change) -> None:
        """See `CacheIndex`."""


class Backlog:
    """Changes that wait for a slow subscriber, at most as many as there were blocks at the last snapshot and 1024.

    Only the last state of a hash is kept. When even so there are too many, all are dropped and a new snapshot follows.
    """

    def __init__(self, index: CacheIndex) -> None:
        self._index = index
        self._pending: dict[bytes, bool] = {}
        self._stale = True
        self._limit = self._sequence = 0

    @property
    def more(self) -> bool:
        """Whether `take` has something to tell."""
        return self._stale or bool(self._pending)

    def note(self, block_hash: bytes, added: bool) -> None:
        """The index has changed."""
        if self._stale:
            # The snapshot to come has it.
            return
        self._pending[block_hash] = added
        if len(self._pending) > self._limit:
            self._pending.clear()
            self._stale = True

    def take(self) -> WatchCacheResponse:
        """The next step of the subscription; empty when there is nothing new."""
        response = WatchCacheResponse(snapshot=self._stale)
        if self._stale:
            self._begin()
        for block_hash in list(islice(self._pending, CHUNK_HASHES)):
            added = self._pending.pop(block_hash)
            (response.added if added else response.removed).append(block_hash)
        self._sequence += 1
        response.sequence = self._sequence
        return response

    def _begin(self) -> None:
        _, hashes = self._index.snapshot()
        self._pending = dict.fromkeys(hashes, True)
        self._limit = len(hashes) + BACKLOG
        self._stale = False
