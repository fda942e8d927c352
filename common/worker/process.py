"""The process of a language-side worker: load, serve, register, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from importlib.metadata import version
from typing import Protocol

from common.kv.wire import layout_to_proto
from common.rpc.channels import Channels
from common.rpc.server import RpcServer
from common.rpc.worker import FULL_NAME, WorkerServicer
from common.store.client import connect
from common.store.registry import Registration
from common.worker.parts import Parts
from triptych.v1 import worker_pb2, worker_pb2_grpc

log = logging.getLogger(__name__)


class Stage(Protocol):
    """Prefill or decode: an engine and its servicers."""

    def register(self, server: RpcServer) -> None:
        """Add the stage's servicers."""

    def start(self) -> None:
        """Start the engine."""

    def load(self) -> worker_pb2.GetLoadResponse:
        """Current load."""

    async def close(self) -> None:
        """Stop the engine; running requests have ended or been cancelled."""


class Site:
    """What a stage is given: the loaded parts, the ways out of the process, and who it is."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.redis = connect(parts.settings.redis_url)
        self.channels = Channels()
        self.instance_id = secrets.token_hex(16)
        self.address = ""

    async def close(self) -> None:
        """Close the connections."""
        await self.channels.close()
        await self.redis.aclose()


class WorkerProcess:
    """A `Service` of `common.rpc.lifecycle`: loads in a thread, so that a signal is heard meanwhile."""

    def __init__(
        self, role: worker_pb2.WorkerRole.ValueType, load: Callable[[], Parts], build: Callable[[Site], Stage]
    ) -> None:
        self._role = role
        self._load = load
        self._build = build
        self._draining = False
        self._stack = contextlib.AsyncExitStack()

    @property
    def address(self) -> str:
        """host:port of its services, once started."""
        return self._site.address

    async def start(self) -> None:
        """Load the model, listen, and announce the worker."""
        parts = await asyncio.to_thread(self._load)
        log.info("%s", parts.plan)
        self._site = Site(parts)
        self._stack.push_async_callback(self._site.close)
        stage = self._build(self._site)
        self._stack.push_async_callback(stage.close)
        await self._serve(stage)
        stage.start()
        registration = Registration(self._site.redis, self._info)
        self._stack.push_async_callback(registration.close)
        registration.start()

    async def stop(self) -> None:
        """Leave the registry, let running calls end within the grace, close the rest."""
        self._draining = True
        await self._stack.aclose()

    async def _serve(self, stage: Stage) -> None:
        settings = self._site.parts.settings
        server = RpcServer(settings.host, settings.port)
        stage.register(server)
        worker = WorkerServicer(self._info, stage.load, self._drain)
        server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker, FULL_NAME)
        self._site.address = settings.address(await server.start())
        self._stack.push_async_callback(server.drain, settings.drain_grace_s)
        await server.set_ready(True)
        log.info("listening on %s", self._site.address)

    def _drain(self) -> None:
        self._draining = True

    def _info(self) -> worker_pb2.WorkerInfo:
        site, parts = self._site, self._site.parts
        return worker_pb2.WorkerInfo(
            instance_id=site.instance_id,
            role=self._role,
            address=site.address,
            model=parts.settings.served_name,
            model_fingerprint=parts.model.fingerprint,
            dtype=parts.settings.dtype,
            version=version("triptych"),
            draining=self._draining,
            layout=layout_to_proto(parts.cache.layout),
            num_blocks=parts.plan.blocks,
        )
