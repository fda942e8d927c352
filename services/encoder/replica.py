"""One replica: a tower, and the way of one picture from its reservation to its stored embedding."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch
from redis.asyncio import Redis

from common.models.tower import Prepared, Tower
from common.models.vision import Features
from common.store.embeddings import EmbeddingStore, Reservation
from common.store.images import ImageStore
from services.encoder.batching import Batcher
from services.encoder.leases import Leases
from services.encoder.pictures import PictureSource
from services.encoder.settings import ReplicaSettings
from services.encoder.work import Description, Done, Task
from triptych.errors import InternalError
from triptych.v1 import encoder_pb2

HIT = int(encoder_pb2.ENCODE_OUTCOME_HIT)
COMPUTED = int(encoder_pb2.ENCODE_OUTCOME_COMPUTED)
JOINED = int(encoder_pb2.ENCODE_OUTCOME_JOINED)
# A waiter asks again for the reservation this often, in case its owner died unnoticed.
WAIT_S = 5.0


class Replica:
    """Holds the tower. Raises errors of our tree; `deployment` turns them into values."""

    def __init__(self, settings: ReplicaSettings, redis: Redis) -> None:
        torch.set_num_threads(settings.threads)
        dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        self._tower = Tower.load(Path(settings.model), dtype=dtype, device=device)
        self._store = EmbeddingStore(redis, settings.embedding_ttl_s)
        images = ImageStore(redis, settings.image_ttl_s)
        self._pictures = PictureSource(images, self._tower, settings.decode_threads)
        self._batcher: Batcher[Prepared, Features] = Batcher(self._encode, settings.max_batch_tokens)
        self._leases = Leases(self._store, settings.reservation_ttl_s)
        self._ttl_s = settings.reservation_ttl_s
        self._name, self._numbers = secrets.token_hex(16), count()

    def describe(self) -> Description:
        """What is loaded."""
        preprocessing = self._tower.family.preprocessing_fingerprint
        return Description(self._tower.fingerprint, preprocessing, self._tower.resident_bytes)

    async def ensure(self, task: Task) -> Done:
        """Return once the embedding is in the store, by whomever it was computed."""
        owner = f"{self._name}-{next(self._numbers)}"
        outcome = HIT
        while True:
            state = await self._store.reserve(task.embedding_key, owner, self._ttl_s)
            if state is Reservation.RESERVED:
                return await self._compute(task, owner)
            if state is Reservation.BUSY:
                outcome = JOINED
                await self._store.wait(task.embedding_key, WAIT_S)
            elif (size := await self._store.size(task.embedding_key, rows=task.tokens)) is not None:
                return Done(task.embedding_key, outcome, size, 0)

    async def _compute(self, task: Task, owner: str) -> Done:
        async with self._leases.held(task.embedding_key, owner):
            prepared = await self._pictures.prepare(task)
            features, encode_ns = await self._batcher.submit(prepared, prepared.tokens)
            size = await self._store.publish(task.embedding_key, owner, features)
        return Done(task.embedding_key, COMPUTED, size, encode_ns)

    def _encode(self, batch: Sequence[Prepared]) -> list[Features]:
        results = [{name: rows.cpu() for name, rows in features.items()} for features in self._tower.encode(batch)]
        # Cached garbage would spoil every later request; raising here makes the batcher find the picture at fault.
        if not all(bool(rows.isfinite().all()) for features in results for rows in features.values()):
            raise InternalError("an embedding is not finite")
        return results
