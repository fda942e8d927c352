"""Turns callers away at once while Redis does not answer, so that only the first of them waits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common.store.address import TIMEOUT_S
from common.store.client import RETRY_AFTER_S, store_errors
from triptych.errors import UnavailableError

PROBE_S = 0.5


class Gate:
    """`store_errors` with a memory: after a failure to answer, one PING every `retry_s` decides whether to try again.

    A server that answers, if only that it is full, is not down: reading still works.
    """

    def __init__(
        self, redis: Redis, retry_s: float = RETRY_AFTER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis, self._retry_s, self._clock = redis, retry_s, clock
        self._retry_at: float | None = None

    @property
    def closed(self) -> bool:
        """Whether the last try failed."""
        return self._retry_at is not None

    @asynccontextmanager
    async def __call__(self, timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
        """Run the block within `timeout_s`. UnavailableError: Redis does not work, or did not a moment ago."""
        await self._check()
        try:
            async with store_errors(timeout_s):
                yield
        except UnavailableError as error:
            if not isinstance(error.__cause__, ResponseError):
                self._retry_at = self._clock() + self._retry_s
            raise
        self._retry_at = None

    async def _check(self) -> None:
        if self._retry_at is None:
            return
        if self._clock() < self._retry_at:
            raise UnavailableError("the shared store does not work now", retry_after_s=self._retry_s)
        # Others are turned away while this one asks.
        self._retry_at = self._clock() + self._retry_s
        async with store_errors(PROBE_S):
            await self._redis.ping()
