"""Embeddings by key: reserved by one owner while they are computed, then ready for everybody.

States of a key: absent -> reserved (an owner, expiring) -> ready (a value, expiring).
One command makes a value visible, so nobody sees half of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from redis.asyncio import Redis
from torch import Tensor

from common.store import codec, scripts
from common.store.client import embedding_key, reservation_key, store_errors
from triptych.errors import UnavailableError

VALUE_TTL_S = 3600.0
# A value of a hundred megabytes takes a quarter of a second on an idle machine.
VALUE_TIMEOUT_S = 10.0
_POLL_S = (0.005, 0.05)


class Reservation(Enum):
    """Answer to the wish to compute a key."""

    READY = b"ready"
    RESERVED = b"reserved"
    BUSY = b"busy"


@dataclass
class StoreCounters:
    """What happened in this process so far."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    write_errors: int = 0


class EmbeddingStore:
    """Every method raises UnavailableError while Redis does not work, and nothing else about Redis."""

    def __init__(self, redis: Redis, ttl_s: float = VALUE_TTL_S) -> None:
        self._redis = redis
        self._ttl_ms = round(ttl_s * 1000)
        self.counters = StoreCounters()

    async def get(self, key: str, rows: int | None = None) -> dict[str, Tensor] | None:
        """The tensors, on the CPU, or None. A bad value, or one of not `rows` rows, is counted, deleted and a miss."""
        async with store_errors(VALUE_TIMEOUT_S):
            value = cast(bytes | None, await self._redis.getex(embedding_key(key), px=self._ttl_ms))
        try:
            tensors = None if value is None else await asyncio.to_thread(codec.unpack, key, value, rows)
        except codec.BadValueError:
            await self._discard(key, value or b"")
            tensors = None
        self._count(tensors is not None)
        return tensors

    async def size(self, key: str, rows: int | None = None) -> int | None:
        """Bytes of the ready value, or None, judged by its head only; a bad one is counted, deleted and a miss."""
        name = embedding_key(key)
        async with store_errors(), self._redis.pipeline(transaction=True) as pipe:
            pipe.getrange(name, 0, codec.HEAD_BYTES - 1)
            pipe.strlen(name)
            pipe.pexpire(name, self._ttl_ms)
            head, size, there = await pipe.execute()
        try:
            if there:
                codec.check_head(key, head, size, rows)
        except codec.BadValueError:
            await self._discard(key, head)
            there = False
        self._count(bool(there))
        return size if there else None

    async def reserve(self, key: str, owner: str, ttl_s: float) -> Reservation:
        """Ask to compute `key`. RESERVED: the caller must publish or release, and renew before `ttl_s` is over.

        `owner` is unique per attempt. A dead owner is forgotten after its `ttl_s`, and the next caller takes over.
        """
        names = embedding_key(key), reservation_key(key)
        async with store_errors():
            return Reservation(await self._redis.eval(scripts.RESERVE, 2, *names, owner, round(ttl_s * 1000)))

    async def renew(self, owners: Mapping[str, str], ttl_s: float) -> None:
        """Prolong reservations: key to its owner. Those that have changed hands are left alone."""
        async with store_errors(), self._redis.pipeline(transaction=False) as pipe:
            for key, owner in owners.items():
                pipe.eval(scripts.RENEW, 1, reservation_key(key), owner, round(ttl_s * 1000))
            await pipe.execute()

    async def publish(self, key: str, owner: str, tensors: Mapping[str, Tensor]) -> int:
        """Make the value ready and end the reservation; returns its bytes.

        Works without a reservation, too: two computations of one key give the same value, so the last may win.
        """
        value = await asyncio.to_thread(codec.pack, key, tensors)
        try:
            async with store_errors(VALUE_TIMEOUT_S):
                await self._redis.set(embedding_key(key), value, px=self._ttl_ms)
        except UnavailableError:
            self.counters.write_errors += 1
            raise
        await self.release(key, owner)
        return len(value)

    async def release(self, key: str, owner: str) -> None:
        """End the reservation if `owner` has it; twice is harmless."""
        async with store_errors():
            await self._redis.eval(scripts.RELEASE, 1, reservation_key(key), owner)

    async def wait(self, key: str, timeout_s: float) -> bool:
        """Wait while another owner computes. False: the reservation has ended without a value, or time is over."""
        pause = _POLL_S[0]
        end = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < end:
            ready, busy = await self._state(key)
            if ready or not busy:
                return ready
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _POLL_S[1])
        return False

    async def _state(self, key: str) -> tuple[bool, bool]:
        async with store_errors(), self._redis.pipeline(transaction=True) as pipe:
            pipe.exists(embedding_key(key))
            pipe.exists(reservation_key(key))
            ready, busy = await pipe.execute()
        return bool(ready), bool(busy)

    async def _discard(self, key: str, value: bytes) -> None:
        self.counters.corrupt += 1
        async with store_errors():
            await self._redis.eval(scripts.DISCARD, 1, embedding_key(key), value[: codec.CHECKSUM_BYTES])

    def _count(self, hit: bool) -> None:
        self.counters.hits += hit
        self.counters.misses += not hit
