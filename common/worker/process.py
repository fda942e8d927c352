"""The process of a language-side worker: load, serve, register, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version

from common.metrics.page import open_metrics
from common.metrics.series import Series
from common.rpc.server import RpcServer
from common.rpc.worker import FULL_NAME, WorkerServicer
from common.store.registry import Registration
from common.worker.liveness import Liveness
from common.worker.metrics import worker_series
from common.worker.parts import Parts
from common.worker.stage import Role, Site, Stages
from triptych.v1 import worker_pb2, worker_pb2_grpc

log = logging.getLogger(__name__)


class WorkerProcess:
    """A `Service` of `common.rpc.lifecycle`: one stage or several on one KV pool.

    Loads in a thread, so that a signal is heard meanwhile. Each role has its own entry in the registry.
    """

    def __init__(self, load: Callable[[], Parts], build: Callable[[Site], Stages]) -> None:
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
        self._stages = self._build(self._site)
        for stage in self._stages.values():
            self._stack.push_async_callback(stage.close)
        self._site.metrics.add(self._series)
        await self._serve()
        for role, stage in self._stages.items():
            stage.start()
            registration = Registration(self._site.redis, partial(self._info, role))
            self._stack.push_async_callback(registration.close)
            registration.start()
        liveness = Liveness(self._server, self._stages.values(), parts.settings.engine_stall_s)
        self._stack.push_async_callback(liveness.close)
        liveness.start()

    async def stop(self) -> None:
        """Leave the registry, let running calls end within the grace, close the rest."""
        self._draining = True
        await self._stack.aclose()

    async def _serve(self) -> None:
        settings = self._site.parts.settings
        instances = [self._instance_id(role) for role in self._stages]
        self._server = server = RpcServer(settings.host, settings.port, instances, settings.server_tls)
        for stage in self._stages.values():
            stage.register(server)
        info, cache = partial(self._info, next(iter(self._stages))), self._site.parts.blocks.cache
        worker = WorkerServicer(info, self._load_now, self._drain, cache, instances)
        server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker, FULL_NAME)
        self._site.address = settings.address(await server.start())
        self._stack.push_async_callback(server.drain, settings.drain_grace_s)
        self._stack.push_async_callback(worker.leave)
        self._site.metrics_address = await open_metrics(settings, self._site.metrics, self._stack)
        await server.set_ready(True)
        log.info("listening on %s", self._site.address)

    def _drain(self) -> None:
        self._draining = True

    def _series(self) -> Iterable[Series]:
        loads = {_stage_name(role): stage.load() for role, stage in self._stages.items()}
        return worker_series(self._site.parts.blocks.cache, loads)

    def _load_now(self) -> worker_pb2.GetLoadResponse:
        """Requests and tokens of all stages; the blocks are the pool's, which they share."""
        cache = self._site.parts.blocks.cache
        total = worker_pb2.GetLoadResponse(
            blocks_in_use=cache.num_in_use, blocks_free=cache.num_free, blocks_cached=cache.num_cached
        )
        for stage in self._stages.values():
            load = stage.load()
            total.waiting_requests += load.waiting_requests
            total.running_requests += load.running_requests
            total.pending_tokens += load.pending_tokens
            total.preemptions += load.preemptions
            total.kv_pushed_bytes += load.kv_pushed_bytes
            total.kv_pulled_bytes += load.kv_pulled_bytes
        return total

    def _instance_id(self, role: Role) -> str:
        return f"{_stage_name(role)}-{self._site.instance_id}"

    def _info(self, role: Role) -> worker_pb2.WorkerInfo:
        site, parts = self._site, self._site.parts
        info = worker_pb2.WorkerInfo(
            instance_id=self._instance_id(role),
            role=role,
            address=site.address,
            model=parts.settings.served_name,
            dtype=parts.settings.dtype,
            version=version("triptych"),
            draining=self._draining,
            metrics_address=site.metrics_address,
            config_fingerprint=parts.config_fingerprint,
        )
        self._stages[role].describe(info)
        return info


def _stage_name(role: Role) -> str:
    return worker_pb2.WorkerRole.Name(role).removeprefix("WORKER_ROLE_").lower()
