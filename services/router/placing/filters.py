"""Which workers may get a piece of work: the first step of placement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from services.router.placing.cluster import fit
from services.router.placing.loads import Loads
from triptych.errors import ContextLengthError
from triptych.v1.worker_pb2 import WorkerInfo

Workers = Sequence[WorkerInfo]
CROWD_FACTOR = 2
CROWD_SLACK = 8


class Filter(Protocol):
    """Leaves out workers that must not get the work."""

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """The workers that may, in the same order."""


class Avoid:
    """Leaves out workers that just failed, unless there are no others: a broken link may heal at the next try."""

    def __init__(self, instance_ids: Collection[str]) -> None:
        self._ids = instance_ids

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """See `Filter`."""
        return [info for info in workers if info.instance_id not in self._ids] or list(workers)


class Holds:
    """Leaves out workers whose whole KV pool is smaller than the work."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """See `Filter`; ContextLengthError when no pool can ever hold it."""
        kept = [info for info in workers if capacity(info) >= self._tokens]
        if workers and not kept:
            most = max(capacity(info) for info in workers)
            raise ContextLengthError(f"the request needs {self._tokens} tokens of KV, the largest pool holds {most}")
        return kept


class Fits:
    """Leaves out workers whose KV means something else than that of one of `partners`."""

    def __init__(self, partners: Workers) -> None:
        self._partners = partners

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """See `Filter`."""
        return [info for info in workers if any(fit(info, partner) for partner in self._partners)]


class Beside:
    """Where a process serves both stages, keeps the KV in it: other workers are left out if one is at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """See `Filter`."""
        return [info for info in workers if info.address == self._address] or list(workers)


class Uncrowded:
    """Leaves out workers that run far more than the idlest: a shared prefix must not draw everybody to one place."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """See `Filter`; keeps at least the idlest."""
        running = [self._loads.running(info) for info in workers]
        limit = CROWD_FACTOR * min(running, default=0) + CROWD_SLACK
        return [info for info, count in zip(workers, running, strict=True) if count <= limit]


def capacity(info: WorkerInfo) -> int:
    """Tokens of KV that a worker's whole pool holds."""
    return info.num_blocks * info.layout.block_size
