"""How well workers suit a piece of work: numbers in [0, 1], the second step of placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.router.placing.loads import Loads
from triptych.v1.worker_pb2 import WorkerInfo

Workers = Sequence[WorkerInfo]
Hashes = Callable[[WorkerInfo], tuple[bytes, ...]]


@dataclass(frozen=True)
class Work:
    """A prompt to be placed now: its tokens, the most tokens that prompt and answer reach, and its block hashes.

    `hashes` depends on the worker, since model and KV layout are part of every hash.
    """

    prompt_tokens: int
    most_tokens: int
    hashes: Hashes
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def cached(self, info: WorkerInfo, loads: Loads) -> int:
        """Tokens of the prompt that a worker has cached from the beginning on; the last one is always computed."""
        known = self._known.get(info.instance_id)
        if known is None:
            tokens = loads.cached(info, self.hashes) * info.layout.block_size
            known = self._known[info.instance_id] = min(tokens, self.prompt_tokens - 1)
        return known


class Score(Protocol):
    """Tells how well a worker suits."""

    def __call__(self, workers: Workers) -> list[float]:
        """One number in [0, 1] a worker; 1 is best."""


class SoonestComputed:
    """Prefers prefill workers that must compute the fewest tokens before the prompt is done: queue and own part.

    So the longest cached prefix wins as long as the queue in front of it costs less than it saves.
    """

    def __init__(self, loads: Loads, work: Work) -> None:
        self._loads, self._work = loads, work

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        prompt = self._work.prompt_tokens
        return few([self._loads.pending(info) + prompt - self._work.cached(info, self._loads) for info in workers])


class CachedPrefix:
    """The share of the prompt that is cached from the beginning on."""

    def __init__(self, loads: Loads, work: Work) -> None:
        self._loads, self._work = loads, work

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        return [self._work.cached(info, self._loads) / self._work.prompt_tokens for info in workers]


class Room:
    """The share of the work's KV blocks that is free now: less than 1 means that the work would wait."""

    def __init__(self, loads: Loads, work: Work) -> None:
        self._loads, self._work = loads, work

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        return [self._share(info) for info in workers]

    def _share(self, info: WorkerInfo) -> float:
        needed = -(-self._work.most_tokens // max(1, info.layout.block_size))
        return min(1.0, self._loads.blocks_free(info) / needed)


class FreeBlocks:
    """The share of a KV pool that is free."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        return [self._loads.blocks_free(info) / max(1, info.num_blocks) for info in workers]


class FewestRunning:
    """Prefers workers with few requests."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        return few([self._loads.running(info) for info in workers])


class LeastPending:
    """Prefers workers with few tokens still to be computed."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def __call__(self, workers: Workers) -> list[float]:
        """See `Score`."""
        return few([self._loads.pending(info) for info in workers])


def few(amounts: Sequence[int]) -> list[float]:
    """1 for nothing, 0 for the most."""
    most = max(amounts, default=0)
    return [1 - amount / most if most else 1.0 for amount in amounts]
