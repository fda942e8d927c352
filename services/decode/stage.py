"""Builds the decode stage of a worker process from its parts."""

from __future__ import annotations

from common.kv.servicer import FULL_NAME as KV_NAME
from common.kv.servicer import KvServicer
from common.rpc.server import RpcServer
from common.worker.process import Site
from services.decode import servicer
from services.decode.engine import DecodeEngine
from services.decode.settings import DecodeSettings
from triptych.v1 import decode_pb2_grpc, kv_pb2_grpc, worker_pb2


class DecodeStage:
    """A `Stage` of `common.worker.process`."""

    def __init__(self, site: Site, settings: DecodeSettings) -> None:
        self._site = site
        self._engine = DecodeEngine(site.parts, settings)

    def register(self, server: RpcServer) -> None:
        """Add DecodeService and KvService."""
        engine, site, parts = self._engine, self._site, self._site.parts
        decode = servicer.DecodeServicer(engine, site)
        kv = KvServicer(site.instance_id, parts.cache, parts.blocks.cache, engine.reservations, engine.deliver)
        server.add(decode_pb2_grpc.add_DecodeServiceServicer_to_server, decode, servicer.FULL_NAME)
        server.add(kv_pb2_grpc.add_KvServiceServicer_to_server, kv, KV_NAME)

    def start(self) -> None:
        """Start the engine."""
        self._engine.start()

    def load(self) -> worker_pb2.GetLoadResponse:
        """Requests and blocks, now."""
        scheduler, cache = self._engine.scheduler, self._site.parts.blocks.cache
        return worker_pb2.GetLoadResponse(
            waiting_requests=scheduler.num_waiting,
            running_requests=scheduler.num_admitted,
            blocks_in_use=cache.num_in_use,
            blocks_free=cache.num_free,
            blocks_cached=cache.num_cached,
            preemptions=scheduler.preemptions,
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()
