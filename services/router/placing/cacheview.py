"""What the workers have announced: their cached blocks and their load. Messages in, answers out; awaits nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triptych.v1.worker_pb2 import GetLoadResponse, WatchCacheResponse


@dataclass
class _Announced:
    sequence: int = 0
    hashes: set[bytes] = field(default_factory=set)
    load: GetLoadResponse = field(default_factory=GetLoadResponse)
    draining: bool = False
    instances: frozenset[str] = frozenset()


class CacheView:
    """By address, since stages of one process share one cache.

    Holds at most `max_blocks` hashes of all workers together, at about 130 bytes each; what comes beyond that is not
    taken in, and only costs placement some of its aim. Every router has its own view: none is shared, none is locked.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._workers: dict[str, _Announced] = {}
        self.size = 0
        self.ignored = 0

    def apply(self, address: str, response: WatchCacheResponse) -> bool:
        """Take in one step of a subscription; False when steps are missing and it must be opened anew."""
        worker = self._workers.setdefault(address, _Announced())
        if response.sequence != worker.sequence + 1 or (worker.sequence == 0 and not response.snapshot):
            return False
        worker.sequence = response.sequence
        worker.load, worker.draining = response.load, response.draining
        if response.snapshot:
            self._void(worker)
            worker.instances = frozenset(response.instance_ids)
        self._change(worker, response)
        return True

    def forget(self, address: str) -> None:
        """The subscription has ended: nothing is known any more."""
        if worker := self._workers.pop(address, None):
            self.size -= len(worker.hashes)

    def prefix(self, address: str, hashes: Sequence[bytes]) -> int:
        """How many of `hashes`, from the first on, the worker has cached."""
        worker = self._workers.get(address)
        if worker is None:
            return 0
        return next((index for index, one in enumerate(hashes) if one not in worker.hashes), len(hashes))

    def load(self, address: str) -> GetLoadResponse:
        """What the worker said last; zeros when it did not."""
        worker = self._workers.get(address)
        return worker.load if worker else GetLoadResponse()

    def refuses(self, address: str, instance_id: str) -> bool:
        """Whether it said that it takes no new work, or that it is somebody else."""
        worker = self._workers.get(address)
        if worker is None:
            return False
        return worker.draining or bool(worker.instances and instance_id not in worker.instances)

    def cached_blocks(self, address: str) -> int:
        """Hashes known of the worker."""
        worker = self._workers.get(address)
        return len(worker.hashes) if worker else 0

    def _void(self, worker: _Announced) -> None:
        self.size -= len(worker.hashes)
        worker.hashes.clear()

    def _change(self, worker: _Announced, response: WatchCacheResponse) -> None:
        before = len(worker.hashes)
        worker.hashes.difference_update(response.removed)
        room = self._max_blocks - (self.size - before + len(worker.hashes))
        worker.hashes.update(response.added[: max(0, room)])
        self.ignored += max(0, len(response.added) - max(0, room))
        self.size += len(worker.hashes) - before
