"""Chooses workers: filter, score, pick. Pure but for the random choice among equals."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.router.cluster import Cluster, fit
from services.router.ledger import Ledger
from triptych.errors import ContextLengthError, FailedPreconditionError, UnavailableError
from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole

Workers = Sequence[WorkerInfo]
# Prefill asks each of them first, which a request waits for.
MAX_PEERS = 4


class Filter(Protocol):
    """Leaves out workers that must not get the work."""

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """The workers that may, in the same order."""


class Score(Protocol):
    """Tells how well a worker suits."""

    def __call__(self, workers: Workers) -> list[float]:
        """One number in [0, 1] a worker; 1 is best."""


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


class Beside:
    """Where a process serves both stages, keeps the KV in it: other workers are left out if one is at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, workers: Workers) -> list[WorkerInfo]:
        """See `Filter`."""
        return [info for info in workers if info.address == self._address] or list(workers)


class LeastLoaded:
    """Prefers workers with few tokens in flight."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        loads = [self._ledger.load(info.instance_id) for info in workers]
        most = max(loads, default=0)
        return [1 - load / most if most else 1.0 for load in loads]


class Pick:
    """Takes the best; ties are broken evenly."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, workers: Workers, scores: Sequence[float]) -> WorkerInfo:
        """One of `workers`, of which there is at least one."""
        best = max(scores)
        return self._rng.choice([info for info, score in zip(workers, scores, strict=True) if score == best])


@dataclass(frozen=True)
class Route:
    """The two workers of one attempt, and addresses of others that prefill may fetch cached KV from."""

    prefill: WorkerInfo
    decode: WorkerInfo
    peers: tuple[str, ...]


class Placement:
    """Chooses the workers of a request."""

    def __init__(self, cluster: Cluster, ledger: Ledger, rng: random.Random) -> None:
        self._cluster = cluster
        self._score: Score = LeastLoaded(ledger)
        self._pick = Pick(rng)

    def route(self, prompt_tokens: int, max_tokens: int, avoid: Collection[str] = ()) -> Route:
        """A decode worker and a prefill worker that fits it; UnavailableError names the role that is missing."""
        prefills = self._filtered(WorkerRole.WORKER_ROLE_PREFILL, Holds(prompt_tokens), Avoid(avoid))
        decodes = self._filtered(WorkerRole.WORKER_ROLE_DECODE, Holds(prompt_tokens + max_tokens), Avoid(avoid))
        paired = [info for info in decodes if any(fit(prefill, info) for prefill in prefills)]
        if not paired:
            raise FailedPreconditionError("no prefill worker has the model and the KV layout of a decode worker")
        decode = self._best(paired)
        fitting = [info for info in prefills if fit(info, decode)]
        prefill = self._best(Beside(decode.address)(fitting))
        return Route(prefill, decode, self._peers(prefill, decode))

    def encoders(self) -> list[WorkerInfo]:
        """Encoders that compute the same embeddings, the best one and its equals; UnavailableError without any."""
        ready = self._filtered(WorkerRole.WORKER_ROLE_ENCODER)
        best = self._best(ready)
        return [info for info in ready if equal_encoders(info, best)]

    def encoder(self, among: Workers) -> WorkerInfo:
        """The one of `among` that should get the next picture."""
        return self._best(among)

    def _peers(self, prefill: WorkerInfo, decode: WorkerInfo) -> tuple[str, ...]:
        roles = (WorkerRole.WORKER_ROLE_DECODE, WorkerRole.WORKER_ROLE_PREFILL)
        fitting = {info.address for role in roles for info in self._cluster.ready(role) if fit(prefill, info)}
        return tuple(sorted(fitting - {prefill.address, decode.address}))[:MAX_PEERS]

    def _filtered(
        self, role: WorkerRole.ValueType, *filters: Filter | Callable[[Workers], list[WorkerInfo]]
    ) -> list[WorkerInfo]:
        workers = self._cluster.ready(role)
        if not workers:
            raise UnavailableError(self._cluster.lacks(role), retry_after_s=1.0)
        for keep in filters:
            workers = keep(workers)
        return workers

    def _best(self, workers: Workers) -> WorkerInfo:
        return self._pick(workers, self._score(workers))


def capacity(info: WorkerInfo) -> int:
    """Tokens of KV that a worker's whole pool holds."""
    return info.num_blocks * info.layout.block_size


def equal_encoders(one: WorkerInfo, other: WorkerInfo) -> bool:
    """Whether two encoders give one picture the same embedding."""
    mine = (one.model_fingerprint, one.preprocessing_fingerprint, one.dtype)
    return mine == (other.model_fingerprint, other.preprocessing_fingerprint, other.dtype)
