"""The encode stage inside a worker: one tower, no Ray. The monolith's way to embeddings."""

from __future__ import annotations

from collections.abc import Iterable

from redis.asyncio import Redis

from common.metrics.registry import Metrics
from common.metrics.series import Series
from common.rpc.server import RpcServer
from services.encoder import servicer
from services.encoder.book import ReplicaBook
from services.encoder.desk import Desk
from services.encoder.load import Load
from services.encoder.metrics import encoder_series
from services.encoder.replica import Replica
from services.encoder.settings import EncoderSettings
from triptych.v1 import encoder_pb2_grpc, worker_pb2


class EncodeStage:
    """A `Stage` of `common.worker.stage` around one replica of the encoder."""

    def __init__(self, settings: EncoderSettings, redis: Redis, metrics: Metrics) -> None:
        self._replica = Replica(settings.for_replica(), redis)
        self._load, self._book = Load(settings.max_pending_tokens), ReplicaBook()
        self._desk = Desk(int(settings.held_budget), settings.held_s)
        self._policy, self._times = settings.embedding_policy, metrics.stages
        self._budget = int(settings.embedding_budget)
        metrics.add(self._series)

    def register(self, server: RpcServer) -> None:
        """Add EncoderService."""
        encoder = servicer.EncoderServicer(self._replica.ensure, self._load, self._desk, times=self._times)
        server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, encoder, servicer.FULL_NAME)

    def start(self) -> None:
        """Nothing runs by itself."""

    def load(self) -> worker_pb2.GetLoadResponse:
        """Pictures and visual tokens, now."""
        return self._load.response()

    def describe(self, info: worker_pb2.WorkerInfo) -> None:
        """Tower and image processor."""
        loaded = self._replica.describe()
        info.model_fingerprint = loaded.model_fingerprint
        info.preprocessing_fingerprint = loaded.preprocessing_fingerprint
        info.embedding_budget_bytes = self._budget
        replica = self._replica.record.report().replica
        info.replicas.append(replica)
        info.degraded.extend(replica.degraded)

    def _series(self) -> Iterable[Series]:
        self._book.take(self._replica.record.report())
        return encoder_series(self._book, self._load, self._policy)

    def alive(self, stall_s: float) -> bool:
        """It has no engine of its own: each call runs by itself."""
        return True

    async def close(self) -> None:
        """Nothing is left running."""
