"""The cluster as this router sees it, in one message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

from services.router.figures.metrics import Metrics
from services.router.placing.ledger import Ledger
from services.router.routing import Routing
from triptych.errors import UnavailableError
from triptych.v1.router_pb2 import QueueStatus, WatchClusterResponse, WorkerStatus
from triptych.v1.worker_pb2 import WorkerInfo

NS_PER_MS = 10**6


class Snapshots:
    """Reads what others keep; changes nothing. `draining` is set when the router is about to leave."""

    def __init__(self, routing: Routing, ledger: Ledger, metrics: Metrics, draining: asyncio.Event) -> None:
        self._routing, self._ledger, self._metrics, self._draining = routing, ledger, metrics, draining

    async def every(self, seconds: float) -> AsyncGenerator[WatchClusterResponse]:
        """The state now and again; UnavailableError at the drain, which must not wait for those who only watch."""
        while not self._draining.is_set():
            yield self.take()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._draining.wait()
        raise UnavailableError("the router is draining")

    def take(self) -> WatchClusterResponse:
        """The state now."""
        routing, totals = self._routing, self._metrics.totals
        return WatchClusterResponse(
            at_unix_ms=time.time_ns() // NS_PER_MS,
            missing=routing.cluster.missing(),
            workers=[self._worker(info) for info in routing.cluster.known()],
            queue=self._queue(),
            running_requests=routing.turnstile.running,
            promised_tokens=routing.turnstile.taken,
            finished_requests=totals["requests"],
            prompt_tokens=totals["prompt"],
            cache_read_tokens=totals["cache_read"],
            completion_tokens=totals["completion"],
            embedding_hits=totals["embedding_hits"],
            embedding_misses=totals["embedding_misses"],
            kv_transfer_bytes=totals["kv_transfer_bytes"],
            retries=totals["retries"],
            router=routing.info,
            others=routing.cluster.others(),
        )

    def _worker(self, info: WorkerInfo) -> WorkerStatus:
        view = self._routing.view
        return WorkerStatus(
            info=info,
            load=view.load(info.address),
            reachable=not self._routing.watches.lost(info),
            requests=self._ledger.count(info.instance_id),
            booked_tokens=self._ledger.load(info.instance_id),
            known_blocks=view.cached_blocks(info.address),
        )

    def _queue(self) -> QueueStatus:
        turnstile = self._routing.turnstile
        return QueueStatus(
            waiting=len(turnstile.queue),
            tenants=len(turnstile.queue.lengths()),
            tokens=turnstile.queue.cost,
            tokens_per_second=turnstile.pace.rate(turnstile.now()) or 0.0,
        )
