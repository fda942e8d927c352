"""Builds the prefill stage of a worker process from its parts."""

from __future__ import annotations

from common.kv.links import NAME as KV_NAME
from common.kv.receiver import Target
from common.kv.reservations import Reservation, Reservations
from common.kv.servicer import KvServicer, add_kv_service
from common.rpc.server import RpcServer
from common.store.embeddings import EmbeddingStore
from common.worker.process import Site, describe_language
from services.prefill import servicer
from services.prefill.delivery import Deliveries
from services.prefill.embeddings import EmbeddingSource
from services.prefill.engine import PrefillEngine
from services.prefill.images import ImageFeed
from services.prefill.puller import Puller
from services.prefill.settings import PrefillSettings
from triptych.errors import InternalError
from triptych.v1 import prefill_pb2_grpc, types_pb2, worker_pb2


class PrefillStage:
    """A `Stage` of `common.worker.process`. Without `serves_kv` the process has a KvService already."""

    def __init__(self, site: Site, settings: PrefillSettings, deliveries: Deliveries, serves_kv: bool) -> None:
        self._site = site
        self._engine = PrefillEngine(site.parts, settings, site.thread)
        self._deliveries = deliveries
        self._serves_kv = serves_kv
        self._memory_bytes = int(settings.embedding_memory)

    def register(self, server: RpcServer) -> None:
        """Add PrefillService and KvService."""
        site, parts = self._site, self._site.parts
        store = EmbeddingStore(site.redis, memory_bytes=self._memory_bytes)
        images = ImageFeed(self._engine, EmbeddingSource(store, site.channels))
        puller = Puller(self._engine, parts, site.channels, self._engine.rates)
        prefill = servicer.PrefillServicer(self._engine, images, puller, self._deliveries)
        server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, prefill, servicer.FULL_NAME)
        if self._serves_kv:
            self._register_kv(server)

    def _register_kv(self, server: RpcServer) -> None:
        site, parts = self._site, self._site.parts
        # Peers may fetch from here; nobody pushes here, so no ticket is ever valid.
        nothing = Reservations(parts.model.num_layers, ttl_s=0.0)
        kv = KvServicer(Target(site.instance_id, parts.cache, nothing, _refuse), parts.blocks.cache)
        server.add(add_kv_service, kv, KV_NAME)

    def start(self) -> None:
        """Start the engine."""
        self._engine.start()

    def load(self) -> worker_pb2.GetLoadResponse:
        """Prompts and tokens, now."""
        scheduler = self._engine.scheduler
        return worker_pb2.GetLoadResponse(
            waiting_requests=scheduler.num_waiting,
            running_requests=scheduler.num_active,
            pending_tokens=scheduler.pending_tokens,
        )

    def describe(self, info: worker_pb2.WorkerInfo) -> None:
        """Model and KV pool."""
        describe_language(info, self._site.parts)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()


def _refuse(reservation: Reservation, first: types_pb2.GeneratedToken) -> None:
    raise InternalError(f"reservation {reservation.id} was delivered to a prefill worker")
