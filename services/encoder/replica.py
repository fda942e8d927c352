"""One replica: a tower, and the way of one picture from its reservation to its stored embedding."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch
from redis.asyncio import Redis

from common.families.checkpoint import config_fingerprint
from common.models.tower import Prepared, Tower
from common.models.vision import Features
from common.store.client import connect
from common.store.embeddings import EmbeddingStore, Reservation
from common.store.gate import Gate
from common.store.images import ImageStore
from common.store.memory import MemoryTier
from common.store.packed import Packed
from common.tracing import Interval, record, span
from common.tracing.sparing import SparingLog
from services.encoder.batching import Batcher
from services.encoder.flights import Flights
from services.encoder.leases import Leases
from services.encoder.pictures import PictureSource
from services.encoder.record import Record
from services.encoder.settings import ReplicaSettings
from services.encoder.work import Description, Done, Task
from triptych.errors import InternalError, UnavailableError
from triptych.v1 import encoder_pb2

log = SparingLog(logging.getLogger(__name__))
HIT = int(encoder_pb2.ENCODE_OUTCOME_HIT)
COMPUTED = int(encoder_pb2.ENCODE_OUTCOME_COMPUTED)
JOINED = int(encoder_pb2.ENCODE_OUTCOME_JOINED)
# A waiter asks again for the reservation this often, in case its owner died unnoticed.
WAIT_S = 5.0


class Replica:
    """Holds the tower. Raises errors of our tree; `deployment` turns them into values."""

    def __init__(self, settings: ReplicaSettings, redis: Redis | None = None) -> None:
        torch.set_num_threads(settings.threads)
        dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        self._tower = Tower.load(Path(settings.model), dtype=dtype, device=device)
        self._config = config_fingerprint(Path(settings.model))
        redis = redis or connect(settings.redis_url)
        gate = Gate(redis)
        self._store = EmbeddingStore(redis, settings.embedding_ttl_s, settings.budget, gate=gate)
        images = ImageStore(redis, settings.image_ttl_s, gate)
        self._pictures = PictureSource(images, self._tower, settings.decode_threads)
        self._batcher: Batcher[Prepared, Features] = Batcher(self._encode, settings.max_batch_tokens)
        self._memory: MemoryTier[Packed] = MemoryTier(settings.embedding_memory)
        self._flights = Flights()
        self._leases = Leases(self._store, settings.reservation_ttl_s)
        self._ttl_s = settings.reservation_ttl_s
        self._name, self._numbers = secrets.token_hex(16), count()
        self.record = Record(self._name, device, self._tower.resident_bytes, self._store.counters)

    def describe(self) -> Description:
        """What is loaded."""
        tower = self._tower
        preprocessing = tower.family.preprocessing_fingerprint
        return Description(self._config, tower.fingerprint, preprocessing, tower.resident_bytes)

    async def ensure(self, task: Task) -> Done:
        """Return once the embedding is in the store, by whomever it was computed, or else with its value."""
        try:
            return await self._through_store(task)
        except UnavailableError as error:
            log.warning("an embedding is handed over directly: %s", error.message)
            return await self._past_store(task)

    async def _through_store(self, task: Task) -> Done:
        owner = f"{self._name}-{next(self._numbers)}"
        outcome = HIT
        while True:
            state = await self._store.reserve(task.embedding_key, owner, self._ttl_s, task.request)
            if state is Reservation.RESERVED:
                return await self._publish(task, owner)
            if state is Reservation.BUSY:
                outcome = JOINED
                await self._store.wait(task.embedding_key, WAIT_S)
            elif (size := await self._store.size(task.embedding_key, rows=task.tokens)) is not None:
                return Done(task.embedding_key, outcome, size, 0)

    async def _past_store(self, task: Task) -> Done:
        async with self._flights.alone(task.embedding_key):
            value, encode_ns = await self._value(task)
        self.record.counts.direct_down += 1
        return _done(task, value, encode_ns, stored=False)

    async def _publish(self, task: Task, owner: str) -> Done:
        async with self._leases.held(task.embedding_key, owner):
            value, encode_ns = await self._value(task)
            stored = await self._put(task, owner, value)
        return _done(task, value, encode_ns, stored)

    async def _put(self, task: Task, owner: str, value: Packed) -> bool:
        try:
            stored = await self._store.put(task.embedding_key, owner, value, task.request)
        except UnavailableError as error:
            log.warning("an embedding is handed over directly: %s", error.message)
            self.record.counts.direct_failed += 1
            return False
        self.record.counts.direct_full += not stored
        return stored

    async def _value(self, task: Task) -> tuple[Packed, int]:
        """The packed embedding, and the nanoseconds on the tower: 0 when it was still in memory."""
        known = self._memory.get(task.embedding_key)
        if known is not None:
            return known, 0
        with self.record.pending.of(task.tokens):
            features, when = await self._compute(task)
        value = self._store.pack(task.embedding_key, features, task.tokens)
        self._memory.put(task.embedding_key, value, len(value))
        return value, when.end_ns - when.begin_ns

    async def _compute(self, task: Task) -> tuple[Features, Interval]:
        with span("replica", replica_id=self._name, visual_tokens=task.tokens) as current:
            with span("preprocess"):
                prepared = await self._pictures.prepare(task)
            submitted = time.monotonic_ns()
            features, when = await self._batcher.submit(prepared, prepared.tokens)
            record("batch wait", Interval(submitted, when.begin_ns), current)
            record("forward", when, current)
        return features, when

    def _encode(self, batch: Sequence[Prepared]) -> list[Features]:
        begin = time.monotonic_ns()
        results = [_own(features) for features in self._tower.encode(batch)]
        # Cached garbage would spoil every later request; raising here makes the batcher find the picture at fault.
        if not all(bool(rows.isfinite().all()) for features in results for rows in features.values()):
            self.record.counts.failures += 1
            raise InternalError("an embedding is not finite")
        tokens = sum(prepared.tokens for prepared in batch)
        self.record.encoded(len(batch), tokens, time.monotonic_ns() - begin)
        return results


def _own(features: Features) -> Features:
    """On the CPU, each in memory of its own: a view would keep the rows of a whole batch as long as itself."""
    return {
        name: rows.cpu().clone() if rows.untyped_storage().nbytes() > rows.nbytes else rows.cpu()
        for name, rows in features.items()
    }


def _done(task: Task, value: Packed, encode_ns: int, stored: bool) -> Done:
    outcome = COMPUTED if encode_ns else HIT
    return Done(task.embedding_key, outcome, len(value), encode_ns, None if stored else bytes(value))
