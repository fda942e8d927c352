"""Requests that wait for KV blocks: bounded, and in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from common.worker.blocks import SequenceBlocks
from triptych.errors import ContextLengthError, ResourceExhaustedError

Job = TypeVar("Job")


class WaitingQueue(Generic[Job]):
    """Nobody overtakes: a request that finds no room holds up those behind it, so large ones are served, too."""

    def __init__(self, blocks: SequenceBlocks, max_waiting: int, can_admit: Callable[[Job], bool]) -> None:
        self._blocks = blocks
        self._max_waiting = max_waiting
        self._can_admit = can_admit
        self._waiting: OrderedDict[Job, None] = OrderedDict()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        """They, in order of arrival."""
        return iter(self._waiting)

    def require_room(self, tokens: int, what: str, param: str) -> None:
        """ContextLengthError, `what` being its subject and verb, if `tokens` tokens do not even fit an empty pool."""
        if not self._blocks.can_ever_admit(tokens):
            pool = self._blocks.cache.num_blocks * self._blocks.block_size
            raise ContextLengthError(f"{what} {tokens} tokens, the KV pool holds {pool}", param=param)

    def push(self, job: Job) -> None:
        """Queue a request. ResourceExhaustedError if the queue is full and it could not start at once."""
        at_once = not self._waiting and self._can_admit(job)
        if len(self._waiting) >= self._max_waiting and not at_once:
            raise ResourceExhaustedError(f"{self._max_waiting} requests are waiting for KV blocks", retry_after_s=1.0)
        self._waiting[job] = None

    def pop(self) -> Job | None:
        """The first request, if there is room for it now."""
        first = next(iter(self._waiting), None)
        if first is None or not self._can_admit(first):
            return None
        del self._waiting[first]
        return first

    def discard(self, job: Job) -> None:
        """Take a request out, wherever it stands; harmless when it does not wait."""
        self._waiting.pop(job, None)
