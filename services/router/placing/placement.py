"""Chooses workers: filter, score, pick. Pure but for the random choice among equals."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from services.router.placing.cluster import Cluster, fit
from services.router.placing.filters import Avoid, Beside, Filter, Fits, Holds, Uncrowded, Workers
from services.router.placing.loads import Loads
from services.router.placing.scores import (
    CachedPrefix,
    FewestRunning,
    FreeBlocks,
    LeastPending,
    Room,
    Score,
    SoonestComputed,
    Work,
)
from triptych.errors import FailedPreconditionError, UnavailableError
from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole

# Prefill asks each of them first, which a request waits for.
MAX_PEERS = 4


class Pick:
    """Takes the best by the first score; the next one decides among equals. Ties are broken evenly."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, workers: Workers, *scores: Score) -> WorkerInfo:
        """One of `workers`, of which there is at least one."""
        for score in scores:
            values = score(workers)
            best = max(values)
            workers = [info for info, value in zip(workers, values, strict=True) if value == best]
        return self._rng.choice(workers)


@dataclass(frozen=True)
class Route:
    """The two workers of one attempt, addresses of others that prefill may fetch cached KV from, and how many tokens
    of the prompt the prefill worker is expected to compute.
    """

    prefill: WorkerInfo
    decode: WorkerInfo
    peers: tuple[str, ...]
    uncached_tokens: int = 0


class Placement:
    """Chooses the workers of a request."""

    def __init__(self, cluster: Cluster, loads: Loads, rng: random.Random) -> None:
        self._cluster, self._loads = cluster, loads
        self._pick = Pick(rng)

    def route(self, work: Work, avoid: Collection[str] = ()) -> Route:
        """A decode worker and a prefill worker that fits it; UnavailableError names the role that is missing."""
        prefills, decodes = self._candidates(work)
        paired = Fits(prefills)(decodes)
        if not paired:
            raise FailedPreconditionError("no prefill worker has the model and the KV layout of a decode worker")
        decode = self._decode(work, Avoid(avoid)(paired))
        fitting = Avoid(avoid)(Fits([decode])(prefills))
        prefill = self._prefill(work, Beside(decode.address)(fitting))
        uncached = work.prompt_tokens - work.cached(prefill, self._loads)
        return Route(prefill, decode, self._peers(work, prefill, decode), uncached)

    def check(self, work: Work) -> None:
        """ContextLengthError with the numbers when no worker can ever hold the work, UnavailableError without any."""
        self._candidates(work)

    def block_size(self) -> int:
        """Tokens in a KV block of the workers that answer; 0 while none is known."""
        ready = self._cluster.ready(WorkerRole.WORKER_ROLE_DECODE)
        return ready[0].layout.block_size if ready else 0

    def encoders(self) -> list[WorkerInfo]:
        """Encoders that compute the same embeddings, the best one and its equals; UnavailableError without any."""
        ready = self._ready(WorkerRole.WORKER_ROLE_ENCODER)
        best = self.encoder(ready)
        return [info for info in ready if equal_encoders(info, best)]

    def equal_encoders(self, known: Workers) -> list[WorkerInfo]:
        """Those ready now that compute the same embeddings as `known`; UnavailableError when there are none."""
        ready = self._ready(WorkerRole.WORKER_ROLE_ENCODER)
        found = [info for info in ready if known and equal_encoders(info, known[0])]
        if not found:
            raise UnavailableError(self._cluster.lacks(WorkerRole.WORKER_ROLE_ENCODER), retry_after_s=1.0)
        return found

    def encoder(self, among: Workers) -> WorkerInfo:
        """The one of `among` that should get the next picture."""
        return self._pick(among, LeastPending(self._loads))

    def _candidates(self, work: Work) -> tuple[list[WorkerInfo], list[WorkerInfo]]:
        prefills = self._ready(WorkerRole.WORKER_ROLE_PREFILL, Holds(work.prompt_tokens))
        return prefills, self._ready(WorkerRole.WORKER_ROLE_DECODE, Holds(work.most_tokens))

    def _decode(self, work: Work, workers: Workers) -> WorkerInfo:
        loads = self._loads
        scores = (Room(loads, work), CachedPrefix(loads, work), FreeBlocks(loads), FewestRunning(loads))
        return self._pick(Uncrowded(loads)(workers), *scores)

    def _prefill(self, work: Work, workers: Workers) -> WorkerInfo:
        loads = self._loads
        return self._pick(workers, SoonestComputed(loads, work), CachedPrefix(loads, work), FewestRunning(loads))

    def _peers(self, work: Work, prefill: WorkerInfo, decode: WorkerInfo) -> tuple[str, ...]:
        """Who has a longer prefix than the two chosen ones, the longest first."""
        if self._loads.nothing_cached:
            return ()
        roles = (WorkerRole.WORKER_ROLE_DECODE, WorkerRole.WORKER_ROLE_PREFILL)
        fitting = [info for role in roles for info in self._cluster.ready(role) if fit(prefill, info)]
        known = max(work.cached(info, self._loads) for info in (prefill, decode))
        longer = {info.address: cached for info in fitting if (cached := work.cached(info, self._loads)) > known}
        return tuple(sorted(longer, key=lambda address: (-longer[address], address)))[:MAX_PEERS]

    def _ready(self, role: WorkerRole.ValueType, *filters: Filter) -> list[WorkerInfo]:
        workers = self._cluster.ready(role)
        if not workers:
            raise UnavailableError(self._cluster.lacks(role), retry_after_s=1.0)
        for keep in filters:
            workers = keep(workers)
        return workers


def equal_encoders(one: WorkerInfo, other: WorkerInfo) -> bool:
    """Whether two encoders give one picture the same embedding."""
    mine = (one.model_fingerprint, one.preprocessing_fingerprint, one.dtype)
    return mine == (other.model_fingerprint, other.preprocessing_fingerprint, other.dtype)
