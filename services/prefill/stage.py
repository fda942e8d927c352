"""Builds the prefill stage of a worker process from its parts."""

from __future__ import annotations

from common.kv.reservations import Reservation, Reservations
from common.kv.servicer import FULL_NAME as KV_NAME
from common.kv.servicer import KvServicer
from common.rpc.server import RpcServer
from common.store.embeddings import EmbeddingStore
from common.worker.process import Site
from services.prefill import servicer
from services.prefill.engine import PrefillEngine
from services.prefill.images import ImageFeed
from services.prefill.puller import Puller
from services.prefill.settings import PrefillSettings
from triptych.errors import InternalError
from triptych.v1 import kv_pb2_grpc, prefill_pb2_grpc, types_pb2, worker_pb2


class PrefillStage:
    """A `Stage` of `common.worker.process`."""

    def __init__(self, site: Site, settings: PrefillSettings) -> None:
        self._site = site
        self._engine = PrefillEngine(site.parts, settings)

    def register(self, server: RpcServer) -> None:
        """Add PrefillService and KvService."""
        images = ImageFeed(self._engine, EmbeddingStore(self._site.redis))
        site, parts = self._site, self._site.parts
        puller = Puller(self._engine, parts, site.channels, self._engine.rates)
        prefill = servicer.PrefillServicer(self._engine, site, images, puller)
        server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, prefill, servicer.FULL_NAME)
        # Peers may fetch from here; nobody pushes here, so no ticket is ever valid.
        nothing = Reservations(parts.model.num_layers, ttl_s=0.0)
        kv = KvServicer(site.instance_id, parts.cache, parts.blocks.cache, nothing, _refuse)
        server.add(kv_pb2_grpc.add_KvServiceServicer_to_server, kv, KV_NAME)

    def start(self) -> None:
        """Start the engine."""
        self._engine.start()

    def load(self) -> worker_pb2.GetLoadResponse:
        """Prompts, tokens and blocks, now."""
        scheduler, cache = self._engine.scheduler, self._site.parts.blocks.cache
        return worker_pb2.GetLoadResponse(
            waiting_requests=scheduler.num_waiting,
            running_requests=scheduler.num_active,
            pending_tokens=scheduler.pending_tokens,
            blocks_in_use=cache.num_in_use,
            blocks_free=cache.num_free,
            blocks_cached=cache.num_cached,
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()


def _refuse(reservation: Reservation, first: types_pb2.GeneratedToken) -> None:
    raise InternalError(f"reservation {reservation.id} was delivered to a prefill worker")
