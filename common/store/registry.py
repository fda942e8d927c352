"""The registry of workers, writing side: one process's description, repeated while it lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf import json_format
from redis.asyncio import Redis

from common.store.client import WORKER_INDEX, end_task, store_errors, worker_key
from common.store.scripts import ALLOW_OOM
from triptych.errors import UnavailableError
from triptych.v1.worker_pb2 import WorkerInfo

log = logging.getLogger(__name__)

# Entry and index in one step, by the server's clock. The index keeps the expiry, so a killed worker leaves no trace.
_BEAT = (
    ALLOW_OOM
    + """
local now = redis.call('TIME')
local at = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[1], at + ARGV[3], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', at)
return at
"""
)
# Instead of a description: the worker said goodbye, as opposed to a registry that was flushed.
GONE = b"gone"


class Registration:
    """Keeps `info()` in the registry: `start` in a running loop, `close` at the end.

    The entry lives `ttl_s` seconds without a heartbeat. Redis may come, go and be flushed at any time.
    """

    def __init__(
        self, redis: Redis, info: Callable[[], WorkerInfo], *, ttl_s: float = 3.0, every_s: float = 1.0
    ) -> None:
        self._redis, self._info, self._every_s = redis, info, every_s
        self._ttl_ms = round(ttl_s * 1000)
        self._task: asyncio.Task[None] | None = None
        self._up = True

    def start(self) -> None:
        """Begin the heartbeats; does not wait for Redis."""
        self._task = asyncio.create_task(self._beat_forever(), name="registry-heartbeat")

    async def announce(self) -> bool:
        """One heartbeat now, for example after `draining` was set; False when Redis could not be told."""
        return await self._say(json_format.MessageToJson(self._info(), indent=None).encode())

    async def close(self) -> None:
        """End the heartbeats and take the entry out; twice is harmless."""
        task, self._task = self._task, None
        if task is None:
            return
        await end_task(task)
        await self._say(GONE)

    async def _beat_forever(self) -> None:
        while True:
            await self._beat_safely()
            await asyncio.sleep(self._every_s)

    async def _beat_safely(self) -> None:
        try:
            await self.announce()
        except Exception:
            # A worker that is not in the registry gets no work: whatever `info` does, the next try must happen.
            log.exception("the description of this worker could not be written")

    async def _say(self, value: bytes) -> bool:
        instance = self._info().instance_id
        try:
            async with store_errors():
                await self._redis.eval(_BEAT, 2, WORKER_INDEX, worker_key(instance), instance, value, self._ttl_ms)
        except UnavailableError as error:
            self._note(False, f"waiting for Redis, this worker is not announced: {error.message}")
            return False
        self._note(True, "announced again")
        return True

    def _note(self, up: bool, line: str) -> None:
        if up != self._up:
            log.warning(line)
        self._up = up
