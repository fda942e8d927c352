"""Processes that show metrics on a port of their own: the setting, and the page from it."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Literal

from pydantic import Field

from common.metrics.registry import Metrics
from common.metrics.server import MetricsServer
from common.settings import Port, ServiceSettings

log = logging.getLogger(__name__)


class MeteredSettings(ServiceSettings):
    """`metrics_port` is not the gRPC port: Prometheus speaks HTTP."""

    metrics_port: Port | Literal["off"] = Field(
        0, description="HTTP port of /metrics; 0 picks a free one, which the log names; off: none"
    )


async def open_metrics(settings: MeteredSettings, metrics: Metrics, closers: AsyncExitStack) -> str:
    """Serve `metrics` until `closers` close; host:port for other processes, or "" when they are off."""
    if settings.metrics_port == "off":
        return ""
    server = MetricsServer(settings.host, settings.metrics_port, metrics.render)
    address = settings.address(await server.start())
    closers.push_async_callback(server.close)
    log.info("metrics on http://%s/metrics", address)
    return address
