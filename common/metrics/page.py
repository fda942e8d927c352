"""The page of metrics of a process that has a port of its own for it."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from common.metrics.registry import Metrics
from common.metrics.server import MetricsServer
from common.settings import RegisteredSettings

log = logging.getLogger(__name__)


async def open_metrics(settings: RegisteredSettings, metrics: Metrics, closers: AsyncExitStack) -> str:
    """Serve `metrics` until `closers` close; host:port for other processes, or "" when they are off."""
    if settings.metrics_port == "off":
        return ""
    server = MetricsServer(settings.host, settings.metrics_port, metrics.render)
    address = settings.address(await server.start())
    closers.push_async_callback(server.close)
    log.info("metrics on http://%s/metrics", address)
    return address
