"""The encoder's front process: listen, wait for Redis, start the fleet, announce it, drain."""

from __future__ import annotations

import contextlib
import logging
import secrets
from importlib.metadata import version

from common.metrics.page import open_metrics
from common.metrics.registry import Metrics
from common.rpc.lifecycle import retry_until
from common.rpc.server import RpcServer
from common.rpc.worker import FULL_NAME, WorkerServicer
from common.store.client import connect, reachable
from common.store.registry import Registration
from services.encoder import servicer
from services.encoder.book import ReplicaBook
from services.encoder.desk import Desk
from services.encoder.fleet import Fleet
from services.encoder.load import Load
from services.encoder.metrics import encoder_series
from services.encoder.settings import EncoderSettings
from services.encoder.shared_memory import shared_memory_bytes
from services.encoder.work import Description
from triptych.errors import CheckpointError
from triptych.v1 import encoder_pb2, encoder_pb2_grpc, worker_pb2, worker_pb2_grpc

log = logging.getLogger(__name__)


class EncoderProcess:
    """A `Service` of `common.rpc.lifecycle`."""

    def __init__(self, settings: EncoderSettings, fleet: Fleet) -> None:
        self._settings, self._fleet = settings, fleet
        self._load = Load(settings.max_pending_tokens)
        self._instance_id = secrets.token_hex(16)
        self._address = ""
        self._loaded = Description("", "", "", 0)
        self._book, self._metrics = ReplicaBook(), Metrics()
        self._metrics_address = ""
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Ready once the first replicas have loaded the tower. ConfigError when they cannot."""
        if not (self._settings.model / "config.json").is_file():
            # The replicas read it; that there is no model at all can be said before Ray is up.
            raise CheckpointError(f"the model directory {self._settings.model} has no config.json")
        redis = connect(self._settings.redis_url)
        self._stack.push_async_callback(redis.aclose)
        self._stack.push_async_callback(self._fleet.stop)
        server = await self._serve()
        await retry_until("Redis", lambda: reachable(redis))
        self._loaded = await self._fleet.start(self._address)
        await server.set_ready(True)
        log.info("encoding on %s, %.1f MiB a replica", self._address, self._loaded.resident_bytes / 2**20)
        registration = Registration(redis, self._info)
        self._stack.push_async_callback(registration.close)
        registration.start()

    async def stop(self) -> None:
        """Leave the registry, let running calls end within the grace, take Ray down."""
        self._load.draining = True
        await self._stack.aclose()

    def hear(self, report: encoder_pb2.ReportReplicaRequest) -> None:
        """Take note of a replica that does not report by gRPC."""
        self._book.take(report)

    async def _serve(self) -> RpcServer:
        settings = self._settings
        server = RpcServer(settings.host, settings.port, [self._instance_id], settings.server_tls)
        desk = Desk(int(self._settings.held_budget), self._settings.held_s)
        encoder = servicer.EncoderServicer(self._fleet.ensure, self._load, desk, self._book, self._metrics.stages)
        server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, encoder, servicer.FULL_NAME)
        worker = WorkerServicer(self._info, self._load.response, self._drain, instances=[self._instance_id])
        server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker, FULL_NAME)
        self._address = self._settings.address(await server.start())
        self._stack.push_async_callback(server.drain, self._settings.drain_grace_s)
        self._stack.push_async_callback(worker.leave)
        self._metrics.add(lambda: encoder_series(self._book, self._load, settings.embedding_policy))
        self._metrics_address = await open_metrics(settings, self._metrics, self._stack)
        return server

    def _drain(self) -> None:
        self._load.draining = True

    def _info(self) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            instance_id=self._instance_id,
            role=worker_pb2.WORKER_ROLE_ENCODER,
            address=self._address,
            model=self._settings.served_name,
            model_fingerprint=self._loaded.model_fingerprint,
            preprocessing_fingerprint=self._loaded.preprocessing_fingerprint,
            dtype=self._settings.dtype,
            version=version("triptych"),
            draining=self._load.draining,
            degraded=self._book.degraded(),
            replicas=self._book.replicas(),
            metrics_address=self._metrics_address,
            config_fingerprint=self._loaded.config_fingerprint,
            embedding_budget_bytes=int(self._settings.embedding_budget),
            shared_memory_bytes=shared_memory_bytes(),
            object_store_bytes=0 if self._settings.ray_address else int(self._settings.object_store),
        )
