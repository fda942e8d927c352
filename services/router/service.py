"""The router's process: opens what it needs in order, closes it in reverse."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

from common.rpc.address import host_port
from common.rpc.channels import Channels
from common.rpc.server import RpcServer
from common.store.client import connect
from common.store.directory import Directory
from services.router.core import Core, add_rpc, http_server
from services.router.http.app import Missing
from services.router.http.server import HttpServer
from services.router.parts import load_parts
from services.router.placing.cluster import Cluster
from services.router.placing.ledger import Ledger
from services.router.settings import RouterSettings

log = logging.getLogger(__name__)
READINESS_EVERY_S = 0.25


class RouterProcess:
    """A `Service` of `common.rpc.lifecycle`."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._draining = asyncio.Event()
        self._opened = AsyncExitStack()
        self.ledger = Ledger()
        self.port = self.http_port = 0

    async def start(self) -> None:
        """Load the tokenizer, watch the registry, and listen on both ports."""
        parts = await asyncio.to_thread(load_parts, self._settings)
        redis, channels = connect(self._settings.redis_url), Channels(self._settings.client_tls)
        directory = Directory(redis)
        for close in (redis.aclose, channels.close, directory.close):
            self._opened.push_async_callback(close)
        directory.start()
        core = Core(self._settings, parts, redis, directory, channels, self.ledger)
        self.routing = core.routing
        self._opened.push_async_callback(core.routing.close)
        following = asyncio.create_task(core.routing.follow(), name="follow-workers")
        self._opened.push_async_callback(_cancel, following)
        self._opened.push_async_callback(core.images.close)
        if core.remote is not None:
            self._opened.push_async_callback(core.remote.close)
        if core.keys is not None:
            self._opened.push_async_callback(_cancel, asyncio.create_task(core.keys.watch(), name="keys file"))
        await self._listen(core)
        host = self._settings.host
        log.info("gRPC on %s, HTTP on %s", host_port(host, self.port), host_port(host, self.http_port))

    async def stop(self) -> None:
        """Readiness off, running answers end within the grace, everything closed."""
        self._draining.set()
        await self._opened.aclose()

    async def _listen(self, core: Core) -> None:
        settings = self._settings
        missing = partial(self._missing, core.cluster)
        rpc = RpcServer(settings.host, settings.port, tls=settings.server_tls, send_timeout_s=settings.send_timeout_s)
        http = http_server(settings, core, missing)
        add_rpc(rpc, settings, core, self._draining)
        self._opened.push_async_callback(_drain, rpc, http, settings.drain_grace_s)
        self.port, self.http_port = await rpc.start(), await http.start()
        readiness = asyncio.create_task(_tell_readiness(rpc, missing), name="readiness")
        self._opened.push_async_callback(_cancel, readiness)

    def _missing(self, cluster: Cluster) -> list[str]:
        return ["the router is draining"] if self._draining.is_set() else cluster.missing()


async def _tell_readiness(rpc: RpcServer, missing: Missing) -> None:
    """Keep the gRPC health service in step with `/readyz`."""
    told = False
    while True:
        if (ready := not missing()) != told:
            await rpc.set_ready(ready)
            told = ready
        await asyncio.sleep(READINESS_EVERY_S)


async def _drain(rpc: RpcServer, http: HttpServer, grace_s: float) -> None:
    await asyncio.gather(rpc.drain(grace_s), http.stop())


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
