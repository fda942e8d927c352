"""Builds the prefill stage of a worker process from its parts."""

from __future__ import annotations

from common.kv.links import NAME as KV_NAME
from common.kv.links import GrpcLinks, Links
from common.kv.servicer import KvServicer, add_kv_service
from common.kv.serving import Shelf
from common.kv.tally import Tally
from common.kv.transport import Transport
from common.rpc.server import RpcServer
from common.store.embeddings import EmbeddingStore
from common.worker.stage import Site, describe_language
from services.prefill import servicer
from services.prefill.delivery import Deliveries
from services.prefill.embeddings import EmbeddingSource
from services.prefill.engine import PrefillEngine
from services.prefill.puller import Puller
from services.prefill.settings import PrefillSettings
from triptych.v1 import prefill_pb2_grpc, worker_pb2


class PrefillStage:
    """A `Stage` of `common.worker.stage`. Without `serves_kv` the process has a KvService already.

    KV comes from peers over `links`, by default the process's gRPC channels.
    """

    def __init__(
        self,
        site: Site,
        settings: PrefillSettings,
        deliveries: Deliveries,
        serves_kv: bool,
        links: Links | None = None,
    ) -> None:
        self._site = site
        self._engine = PrefillEngine(site.parts, settings, site.thread)
        self._deliveries = deliveries
        self._serves_kv = serves_kv
        self._links = links or GrpcLinks(site.channels)
        # Values are renewed for as long as the encoder wrote them.
        store = EmbeddingStore(site.redis, None, memory_bytes=int(settings.embedding_memory))
        self._source = EmbeddingSource(store, site.channels)
        site.metrics.add(self._source.series)
        self._tally = Tally()
        site.metrics.add(self._tally.series)

    def register(self, server: RpcServer) -> None:
        """Add PrefillService and KvService."""
        site, parts = self._site, self._site.parts
        puller = Puller(self._engine, parts, site.channels, self._links, self._tally)
        prefill = servicer.PrefillServicer(self._engine, site, self._source, puller, self._deliveries, self._tally)
        server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, prefill, servicer.FULL_NAME)
        if self._serves_kv:
            self._register_kv(server)

    def _register_kv(self, server: RpcServer) -> None:
        parts = self._site.parts
        transport = Transport(parts.cache.layout, parts.settings.kv_transport)
        # Peers may pull from here; nobody pushes here.
        kv = KvServicer(Shelf(parts.cache, parts.blocks.cache, transport))
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
            kv_pushed_bytes=self._tally.pushed_bytes,
            kv_pulled_bytes=self._tally.pulled_bytes,
        )

    def describe(self, info: worker_pb2.WorkerInfo) -> None:
        """Model, KV pool, and whether embeddings can be read."""
        describe_language(info, self._site.parts)
        info.degraded.extend(self._source.degraded())

    def alive(self, stall_s: float) -> bool:
        """See `Stage`."""
        return self._engine.alive(stall_s)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()
