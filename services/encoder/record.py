"""What a replica knows of itself and tells the front."""

from __future__ import annotations

import torch

from common.store.counters import StoreCounters
from services.encoder.counters import EncoderCounters, Pending, counted
from services.encoder.memory import memory_use
from triptych.v1.encoder_pb2 import ReportReplicaRequest
from triptych.v1.worker_pb2 import ReplicaInfo


class Record:
    """`counts` and `pending` are written by the replica; `store` by the store's client."""

    def __init__(self, name: str, device: torch.device, weights_bytes: int, store: StoreCounters) -> None:
        self._name, self._device, self._weights_bytes = name, device, weights_bytes
        self.store = store
        self.counts, self.pending = EncoderCounters(), Pending()

    def encoded(self, pictures: int, tokens: int, elapsed_ns: int) -> None:
        """One batch went well."""
        self.counts.batches += 1
        self.counts.pictures += pictures
        self.counts.visual_tokens += tokens
        self.counts.encode_ns += elapsed_ns

    def report(self) -> ReportReplicaRequest:
        """What the replica is, uses and has done, now."""
        memory = memory_use(self._device)
        info = ReplicaInfo(
            replica_id=self._name,
            device=memory.device,
            weights_bytes=self._weights_bytes,
            memory_bytes=memory.now,
            peak_memory_bytes=memory.peak,
            pending_tokens=self.pending.tokens,
            degraded=self.store.degraded(),
        )
        return ReportReplicaRequest(replica=info, counters=counted(self.store, self.counts))
