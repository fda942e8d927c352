"""Subscribes to every worker of the registry: what it has cached, how busy it is, and whether it is still there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import grpc

from common.rpc.channels import Channels
from common.store.client import end_task
from services.router.placing.cacheview import CacheView
from triptych.status import is_cancelled
from triptych.v1.worker_pb2 import WatchCacheRequest, WorkerInfo
from triptych.v1.worker_pb2_grpc import WorkerServiceStub

log = logging.getLogger(__name__)
RETRY_S = 0.25
# Workers say something twice a second. One that does not is frozen or cut off; on a busy machine all may be late.
SILENCE_S = 5.0


class Watches:
    """One subscription an address. A worker counts as lost until it answers, and again once its subscription breaks.

    That is how a killed worker is noticed at once: its registry entry outlives it by seconds. Whoever answers says who
    it is, so that an entry of its predecessor is not mistaken for it.
    """

    def __init__(self, channels: Channels, view: CacheView) -> None:
        self._channels, self._view = channels, view
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._alive: set[str] = set()
        self._told: set[str] = set()

    def lost(self, info: WorkerInfo) -> bool:
        """Whether the worker is not known to be reachable, or known to be about to leave."""
        return info.address not in self._alive or self._view.refuses(info.address, info.instance_id)

    async def follow(self, workers: Sequence[WorkerInfo]) -> None:
        """Be subscribed to exactly these from now on."""
        wanted = {info.address for info in workers}
        for address in self._tasks.keys() - wanted:
            await end_task(self._tasks.pop(address))
            self._forget(address)
            self._told.discard(address)
        for address in wanted - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._watch(address), name=f"watch-{address}")

    async def close(self) -> None:
        """End all subscriptions; twice is harmless."""
        await self.follow(())

    async def _watch(self, address: str) -> None:
        while True:
            try:
                await self._listen(address)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    # It works without, only less well.
                    self._alive.add(address)
                    return
                self._tell(address, logging.INFO, f"its subscription has ended: {error.code().name}")
            except TimeoutError:
                self._tell(address, logging.WARNING, f"it is silent for {SILENCE_S:.0f} s and gets no new work")
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            self._forget(address)
            await asyncio.sleep(RETRY_S)

    async def _listen(self, address: str) -> None:
        call = WorkerServiceStub(self._channels.get(address)).WatchCache(WatchCacheRequest())
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(SILENCE_S) as patience:
                async for response in call:
                    patience.reschedule(clock() + SILENCE_S)
                    if not self._view.apply(address, response):
                        return
                    self._alive.add(address)
        finally:
            call.cancel()

    def _tell(self, address: str, level: int, sentence: str) -> None:
        """Log that a worker is lost, once until it has been back."""
        if address in self._alive or address not in self._told:
            log.log(level, "worker %s: %s", address, sentence)
        self._told.add(address)

    def _forget(self, address: str) -> None:
        self._view.forget(address)
        self._alive.discard(address)
