"""What decides where and when requests run: the view of the workers, placement, the queue, and the failover rules."""

from __future__ import annotations

import asyncio
import random
import time

from common.rpc.channels import Channels
from common.store.directory import Directory
from services.router.figures.metrics import Metrics
from services.router.parts import Parts
from services.router.placing.cacheview import CacheView
from services.router.placing.cluster import Cluster
from services.router.placing.ledger import Ledger
from services.router.placing.loads import Loads
from services.router.placing.placement import Placement
from services.router.placing.watches import Watches
from services.router.running.budget import RetryBudget
from services.router.running.failover import Failover
from services.router.running.quarantine import Quarantine
from services.router.settings import RouterSettings
from services.router.waiting.capacity import Capacity
from services.router.waiting.turnstile import Turnstile

# Changes of the registry wake it earlier.
LOOK_EVERY_S = 0.5


class Routing:
    """One of each; `follow` keeps the subscriptions to workers in step with the registry."""

    def __init__(
        self,
        settings: RouterSettings,
        parts: Parts,
        directory: Directory,
        channels: Channels,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        self._directory, self.info = directory, parts.info
        self.view = CacheView(settings.cached_blocks)
        self.watches = Watches(channels, self.view)
        config, preprocessing = parts.info.config_fingerprint, parts.info.preprocessing_fingerprint
        self.cluster = Cluster(directory.workers, parts.card.name, config, preprocessing, self.watches.lost)
        self.loads = Loads(ledger, self.view)
        self.placement = Placement(self.cluster, self.loads, random.Random())
        capacity = Capacity(self.cluster, self.loads, settings.overcommit)
        self.turnstile = Turnstile(capacity, settings.max_queued, metrics.shed)
        quarantine = Quarantine(settings.quarantine_s, time.monotonic)
        budget = RetryBudget(time.monotonic)
        self.failover = Failover(budget, quarantine, settings.max_attempts, metrics.retried, metrics.gave_up)
        metrics.queue(self.turnstile)

    async def follow(self) -> None:
        """Run until cancelled; then `close`."""
        while True:
            await self.watches.follow(self.cluster.known())
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._directory.changed()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """End the subscriptions."""
        await self.watches.close()
        self.turnstile.close()
