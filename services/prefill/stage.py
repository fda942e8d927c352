"""Builds the prefill stage of a worker process from its parts."""

from __future__ import annotations

from common.rpc.server import RpcServer
from common.store.embeddings import EmbeddingStore
from common.worker.process import Site
from services.prefill import servicer
from services.prefill.engine import PrefillEngine
from services.prefill.images import ImageFeed
from services.prefill.settings import PrefillSettings
from triptych.v1 import prefill_pb2_grpc, worker_pb2


class PrefillStage:
    """A `Stage` of `common.worker.process`."""

    def __init__(self, site: Site, settings: PrefillSettings) -> None:
        self._site = site
        self._engine = PrefillEngine(site.parts, settings)

    def register(self, server: RpcServer) -> None:
        """Add PrefillService."""
        images = ImageFeed(self._engine, EmbeddingStore(self._site.redis))
        prefill = servicer.PrefillServicer(self._engine, self._site, images)
        server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, prefill, servicer.FULL_NAME)

    def start(self) -> None:
        """Start the engine."""
        self._engine.start()

    def load(self) -> worker_pb2.GetLoadResponse:
        """Prompts, tokens and blocks, now."""
        scheduler, pool = self._engine.scheduler, self._site.parts.blocks.pool
        return worker_pb2.GetLoadResponse(
            waiting_requests=scheduler.num_waiting,
            running_requests=scheduler.num_active,
            pending_tokens=scheduler.pending_tokens,
            blocks_in_use=pool.num_used,
            blocks_free=pool.num_free,
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()
