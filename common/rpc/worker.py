"""WorkerService, the same for every role: description, load, drain, and the cached blocks as they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

import grpc

from common.rpc.cachefeed import Backlog, CacheIndex, NoCache
from triptych.v1 import worker_pb2, worker_pb2_grpc

FULL_NAME = "triptych.v1.WorkerService"
LOAD_EVERY_S = 0.5
# Changes come in bursts, one for each block of a prompt.
GATHER_S = 0.02


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers from the callables and the index it is given. `leave` ends the subscriptions, before the server drains.

    `instances` are the ids under which the process is in the registry.
    """

    def __init__(
        self,
        info: Callable[[], worker_pb2.WorkerInfo],
        load: Callable[[], worker_pb2.GetLoadResponse],
        drain: Callable[[], None],
        cache: CacheIndex | None = None,
        instances: Collection[str] = (),
    ) -> None:
        self._info, self._load, self._drain, self._instances = info, load, drain, instances
        self._cache = cache or NoCache()
        self._leaving = False
        self._wakes: set[asyncio.Event] = set()

    async def GetInfo(
        self, request: worker_pb2.GetInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.GetInfoResponse:
        """The current description."""
        return worker_pb2.GetInfoResponse(info=self._info())

    async def GetLoad(
        self, request: worker_pb2.GetLoadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.GetLoadResponse:
        """The current load."""
        return self._load_now()

    async def Drain(
        self, request: worker_pb2.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.DrainResponse:
        """Stop taking new work; idempotent."""
        self._drain()
        self._wake()
        return worker_pb2.DrainResponse()

    async def WatchCache(
        self, request: worker_pb2.WatchCacheRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[worker_pb2.WatchCacheResponse, None]:
        """A snapshot, then changes and load, until the worker leaves."""
        backlog, wake = Backlog(self._cache), asyncio.Event()

        def note(block_hash: bytes, added: bool) -> None:
            backlog.note(block_hash, added)
            wake.set()

        def stop(_: object = None) -> None:
            self._cache.stop_change(note)
            self._wakes.discard(wake)

        self._cache.on_change(note)
        self._wakes.add(wake)
        # Also when the call dies while a response is being written, where this generator is not told.
        context.add_done_callback(stop)  # type: ignore[arg-type]  # the stub's own type
        try:
            while not self._leaving:
                yield self._step(backlog)
                if not backlog.more:
                    await _pause(wake)
        finally:
            stop()

    async def leave(self) -> None:
        """End all subscriptions."""
        self._leaving = True
        self._wake()

    def _step(self, backlog: Backlog) -> worker_pb2.WatchCacheResponse:
        response = backlog.take()
        response.load.CopyFrom(self._load_now())
        response.draining = self._info().draining
        if response.snapshot:
            response.instance_ids.extend(self._instances)
        return response

    def _load_now(self) -> worker_pb2.GetLoadResponse:
        load = self._load()
        load.at_unix_ms = time.time_ns() // 10**6
        return load

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set()


async def _pause(wake: asyncio.Event) -> None:
    """Until something has changed, and a moment for what changes with it; not longer than the load may be old."""
    wake.clear()
    try:
        async with asyncio.timeout(LOAD_EVERY_S):
            await wake.wait()
    except TimeoutError:
        return
    await asyncio.sleep(GATHER_S)
