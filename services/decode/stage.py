"""Builds the decode stage of a worker process from its parts."""

from __future__ import annotations

from common.kv.links import NAME as KV_NAME
from common.kv.receiver import Target
from common.kv.servicer import KvServicer, add_kv_service
from common.kv.serving import Shelf
from common.kv.transport import Transport
from common.rpc.server import RpcServer
from common.worker.stage import Site, describe_language
from services.decode import servicer
from services.decode.engine import DecodeEngine
from services.decode.settings import DecodeSettings
from triptych.v1 import decode_pb2_grpc, worker_pb2


class DecodeStage:
    """A `Stage` of `common.worker.stage`. `computes_prompts`: prefill works in its blocks, in this process."""

    def __init__(self, site: Site, settings: DecodeSettings, computes_prompts: bool = False) -> None:
        self._site, self._max_running = site, settings.max_running
        self.engine = DecodeEngine(site.parts, settings, site.thread, computes_prompts)

    def register(self, server: RpcServer) -> None:
        """Add DecodeService and KvService."""
        engine, site, parts = self.engine, self._site, self._site.parts
        decode = servicer.DecodeServicer(engine, site)
        mode = parts.settings.kv_transport
        target = Target(site.instance_id, parts.cache, engine.intake.reservations, engine.deliver, mode)
        server.add(decode_pb2_grpc.add_DecodeServiceServicer_to_server, decode, servicer.FULL_NAME)
        shelf = Shelf(parts.cache, parts.blocks.cache, Transport(parts.cache.layout, mode))
        server.add(add_kv_service, KvServicer(shelf, target), KV_NAME)

    def start(self) -> None:
        """Start the engine."""
        self.engine.start()

    def load(self) -> worker_pb2.GetLoadResponse:
        """Requests and preemptions, now."""
        scheduler = self.engine.scheduler
        return worker_pb2.GetLoadResponse(
            waiting_requests=scheduler.num_waiting,
            running_requests=scheduler.num_admitted,
            preemptions=scheduler.preemptions,
        )

    def describe(self, info: worker_pb2.WorkerInfo) -> None:
        """Model and KV pool."""
        describe_language(info, self._site.parts)
        info.max_sequences = self._max_running

    def alive(self, stall_s: float) -> bool:
        """See `Stage`."""
        return self.engine.alive(stall_s)

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.close()
