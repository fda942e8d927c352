"""How busy workers are: what they said last, or what this router alone has sent since, whichever is more."""

from __future__ import annotations

from collections.abc import Callable

from services.router.placing.cacheview import CacheView
from services.router.placing.ledger import Ledger
from triptych.v1.worker_pb2 import WorkerInfo


class Loads:
    """A worker's word counts all routers but is up to a second old; the ledger is exact but knows one router."""

    def __init__(self, ledger: Ledger, view: CacheView) -> None:
        self._ledger, self._view = ledger, view

    @property
    def nothing_cached(self) -> bool:
        """Whether no worker has announced any block."""
        return self._view.size == 0

    def pending(self, info: WorkerInfo) -> int:
        """Tokens not computed yet: of prompts for prefill, of pictures for encoders."""
        return max(self._ledger.load(info.instance_id), self._view.load(info.address).pending_tokens)

    def blocks_free(self, info: WorkerInfo) -> int:
        """KV blocks of a decode worker that nobody holds; never negative."""
        booked = -(-self._ledger.load(info.instance_id) // max(1, info.layout.block_size))
        return max(0, info.num_blocks - max(booked, self._view.load(info.address).blocks_in_use))

    def blocks_held(self, info: WorkerInfo) -> int:
        """KV blocks that are in use by its own word: what was promised may never be needed."""
        return self._view.load(info.address).blocks_in_use

    def running(self, info: WorkerInfo) -> int:
        """Requests it has taken."""
        said = self._view.load(info.address)
        return max(self._ledger.count(info.instance_id), said.running_requests + said.waiting_requests)

    def cached(self, info: WorkerInfo, hashes: Callable[[WorkerInfo], tuple[bytes, ...]]) -> int:
        """Leading blocks of a prompt that it has. Nothing is hashed for a worker that has none at all."""
        return self._view.prefix(info.address, hashes(info)) if self._view.cached_blocks(info.address) else 0
