"""Processes that show metrics on a port of their own: the setting, and the page from it."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Literal, Self

from pydantic import Field, model_validator

from common.metrics.registry import Metrics
from common.metrics.server import MetricsServer
from common.rpc.address import is_every_interface
from common.settings import Port, ServiceSettings

log = logging.getLogger(__name__)


class MeteredSettings(ServiceSettings):
    """Of a worker: it tells others where it is. `metrics_port` is not the gRPC port: Prometheus speaks HTTP."""

    metrics_port: Port | Literal["off"] = Field(
        0, description="HTTP port of /metrics; 0 picks a free one, which the log names; off: none"
    )

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if is_every_interface(self.advertise or self.host):
            raise ValueError("host is every interface, which is no address for others: set advertise to one of its own")
        return self


async def open_metrics(settings: MeteredSettings, metrics: Metrics, closers: AsyncExitStack) -> str:
    """Serve `metrics` until `closers` close; host:port for other processes, or "" when they are off."""
    if settings.metrics_port == "off":
        return ""
    server = MetricsServer(settings.host, settings.metrics_port, metrics.render)
    address = settings.address(await server.start())
    closers.push_async_callback(server.close)
    log.info("metrics on http://%s/metrics", address)
    return address
