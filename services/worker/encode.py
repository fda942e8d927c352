"""The encode stage inside a worker: one tower, no Ray. The monolith's way to embeddings."""

from __future__ import annotations

from redis.asyncio import Redis

from common.rpc.server import RpcServer
from services.encoder import servicer
from services.encoder.load import Load
from services.encoder.replica import Replica
from services.encoder.settings import EncoderSettings
from triptych.v1 import encoder_pb2_grpc, worker_pb2


class EncodeStage:
    """A `Stage` of `common.worker.process` around one replica of the encoder."""

    def __init__(self, settings: EncoderSettings, redis: Redis) -> None:
        self._replica = Replica(settings.for_replica(), redis)
        self._load = Load(settings.max_pending_tokens)

    def register(self, server: RpcServer) -> None:
        """Add EncoderService."""
        encoder = servicer.EncoderServicer(self._replica.ensure, self._load)
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

    async def close(self) -> None:
        """Nothing is left running."""
