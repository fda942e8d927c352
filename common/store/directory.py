"""The registry of workers, reading side: a view of the cluster that outlives outages of Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import cast

from redis.asyncio import Redis

from common.store.client import WORKER_INDEX, end_task, store_errors, worker_key
from common.store.view import Entry, View
from triptych.errors import UnavailableError
from triptych.v1.worker_pb2 import WorkerInfo

log = logging.getLogger(__name__)


class Directory:
    """Polls the registry: `start` in a running loop, read `workers()`, `close` at the end."""

    def __init__(self, redis: Redis, *, every_s: float = 0.5, grace_s: float = 2.0) -> None:
        self._redis, self._every_s = redis, every_s
        self._view = View(grace_s)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._up = True

    def start(self) -> None:
        """Begin to poll; does not wait for Redis."""
        self._task = asyncio.create_task(self._poll_forever(), name="registry-poll")

    def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers known now, in a stable order; while Redis is down, those known last."""
        return self._view.workers

    @property
    def malformed(self) -> int:
        """Readings of entries that were no description of their worker."""
        return self._view.malformed

    @property
    def up(self) -> bool:
        """Whether the last reading succeeded."""
        return self._up

    async def changed(self) -> None:
        """Return after the next change of `workers()`."""
        await self._changed.wait()

    async def poll(self) -> None:
        """Read the registry once, now."""
        try:
            async with store_errors():
                entries = await self._read()
        except UnavailableError as error:
            self._note(False, f"waiting for Redis, keeping the last view of the cluster: {error.message}")
            return
        self._note(True, "the registry is readable again")
        if self._view.update(entries, time.monotonic()):
            self._changed.set()
            self._changed = asyncio.Event()

    async def close(self) -> None:
        """Stop polling; twice is harmless."""
        task, self._task = self._task, None
        if task is not None:
            await end_task(task)

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:
                # The view of the cluster must not freeze because of one odd answer.
                log.exception("the registry could not be read")
            await asyncio.sleep(self._every_s)

    async def _read(self) -> dict[str, Entry]:
        index = cast(list[tuple[bytes, float]], await self._redis.zrange(WORKER_INDEX, 0, -1, withscores=True))
        names = [member.decode(errors="replace") for member, _ in index]
        values: list[bytes | None] = []
        if names:
            values = cast(list[bytes | None], await self._redis.mget([worker_key(name) for name in names]))
        found = zip(names, values, index, strict=True)
        return {name: Entry(value, score) for name, value, (_, score) in found if value is not None}

    def _note(self, up: bool, line: str) -> None:
        if up != self._up:
            log.warning(line)
        self._up = up
