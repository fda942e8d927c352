"""Embeddings by key: reserved by one owner while they are computed, then ready for everybody.

States of a key: absent -> reserved (an owner, expiring) -> ready (a value, expiring) -> evicted, expired or discarded.
Each step is one script or one transaction, so nobody sees half of it, and the budget holds at every moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from redis.asyncio import Redis
from torch import Tensor

from common.store import codec, scripts
from common.store.budget import Account, Budget, StoreCounters
from common.store.client import embedding_key, lease_key, reservation_key
from common.store.gate import Gate
from common.store.memory import MemoryTier
from triptych.errors import UnavailableError

VALUE_TTL_S = 3600.0
# A value of a hundred megabytes takes a quarter of a second on an idle machine.
VALUE_TIMEOUT_S = 10.0
_POLL_S = (0.005, 0.05)
_STAGED_MS = 60_000
# Below this a change of threads takes longer than the work, a third of a millisecond.
_SMALL_BYTES = 2**20 + codec.HEAD_BYTES


class Reservation(Enum):
    """Answer to the wish to compute a key."""

    READY = b"ready"
    RESERVED = b"reserved"
    BUSY = b"busy"


class EmbeddingStore:
    """Every method raises UnavailableError while Redis does not work, and nothing else about Redis.

    `request` names a request that needs the embedding: it gets a lease with the answer that the value is ready, and
    loses it when it has read the rows, or after the budget's `lease_s`. Without a request there is no lease.
    """

    def __init__(
        self,
        redis: Redis,
        ttl_s: float = VALUE_TTL_S,
        budget: Budget | None = None,
        *,
        gate: Gate | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self._redis, self._gate = redis, gate or Gate(redis)
        self._ttl_ms = round(ttl_s * 1000)
        self._budget = budget or Budget()
        self._memory: MemoryTier[dict[str, Tensor]] = MemoryTier(memory_bytes)
        self.counters = StoreCounters()

    async def get(self, key: str, rows: int | None = None, request: str = "") -> dict[str, Tensor] | None:
        """The tensors, on the CPU, or None; ends the lease of `request`.

        A bad value, or one of not `rows` rows, is counted, deleted and a miss.
        """
        if (known := self.recall(key, rows)) is not None:
            await self._forgo(key, request)
            return known
        async with self._gate(VALUE_TIMEOUT_S), self._redis.pipeline(transaction=False) as pipe:
            pipe.get(embedding_key(key))
            self._eval(pipe, scripts.TOUCH, key, self._ttl_ms, request)
            value, _ = await pipe.execute()
        tensors = None if value is None else await self.adopt(key, value, rows)
        if value is not None and tensors is None:
            await self._discard(key, value)
        self._count(tensors is not None)
        return tensors

    def recall(self, key: str, rows: int | None = None) -> dict[str, Tensor] | None:
        """The tensors if this process remembers them."""
        tensors = self._memory.get(key)
        if tensors is None or any(rows not in (None, len(tensor)) for tensor in tensors.values()):
            return None
        self.counters.memory_hits += 1
        return tensors

    async def adopt(self, key: str, value: bytes, rows: int | None = None) -> dict[str, Tensor] | None:
        """Verify a packed value, from wherever it came, and remember it; None, and counted, when it is bad."""
        try:
            tensors = await _unpack(key, value, rows)
        except codec.BadValueError:
            self.counters.corrupt += 1
            return None
        self._memory.put(key, tensors, len(value))
        return tensors

    async def size(self, key: str, rows: int | None = None) -> int | None:
        """Bytes of the ready value, or None, judged by its head only; a bad one is counted, deleted and a miss."""
        async with self._gate(), self._redis.pipeline(transaction=True) as pipe:
            pipe.getrange(embedding_key(key), 0, codec.HEAD_BYTES - 1)
            pipe.exists(embedding_key(key))
            self._eval(pipe, scripts.TOUCH, key, self._ttl_ms, "")
            head, there, size = await pipe.execute()
        try:
            if there:
                codec.check_head(key, head, size, rows)
        except codec.BadValueError:
            self.counters.corrupt += 1
            await self._discard(key, head)
            there = False
        self._count(bool(there))
        return int(size) if there else None

    async def reserve(self, key: str, owner: str, ttl_s: float, request: str = "") -> Reservation:
        """Ask to compute `key`. RESERVED: the caller must publish or release, and renew before `ttl_s` is over.

        `owner` is unique per attempt. A dead owner is forgotten after its `ttl_s`, and the next caller takes over.
        READY: `request` has a lease.
        """
        arguments = owner, round(ttl_s * 1000), request, self._budget.lease_ms
        async with self._gate():
            answer = await self._eval(self._redis, scripts.RESERVE, key, *arguments, more=(reservation_key(key),))
        return Reservation(answer)

    async def renew(self, owners: Mapping[str, str], ttl_s: float) -> None:
        """Prolong reservations: key to its owner. Those that have changed hands are left alone."""
        async with self._gate(), self._redis.pipeline(transaction=False) as pipe:
            for key, owner in owners.items():
                pipe.eval(scripts.RENEW, 1, reservation_key(key), owner, round(ttl_s * 1000))
            await pipe.execute()

    async def publish(self, key: str, owner: str, tensors: Mapping[str, Tensor], request: str = "") -> int:
        """`put` of tensors; the bytes stored, 0 when there was no room."""
        value = await asyncio.to_thread(codec.pack, key, tensors)
        return len(value) if await self.put(key, owner, value, request) else 0

    async def put(self, key: str, owner: str, value: bytes, request: str = "") -> bool:
        """Make a packed value ready, lease it to `request`, end the reservation; evicts others as far as it must.

        False when there is no room: larger than the budget, or all the rest is leased. Works without a reservation,
        too: two computations of one key give the same value, so the last may win.
        """
        if len(value) > self._budget.max_bytes:
            self.counters.refused += 1
            await self.release(key, owner)
            return False
        try:
            async with self._gate(VALUE_TIMEOUT_S):
                stored, evicted, total = await self._write(key, owner, value, request)
        except UnavailableError:
            self.counters.write_errors += 1
            raise
        self.counters.refused += not stored
        self.counters.evictions += evicted
        self.counters.bytes = total
        return bool(stored)

    async def release(self, key: str, owner: str) -> None:
        """End the reservation if `owner` has it; twice is harmless."""
        async with self._gate():
            await self._redis.eval(scripts.RELEASE, 1, reservation_key(key), owner)

    async def touch(self, key: str, request: str = "") -> int:
        """Count a use that needed no bytes of the value, and end the lease of `request`; the value's bytes."""
        async with self._gate():
            return int(await self._eval(self._redis, scripts.TOUCH, key, self._ttl_ms, request))

    async def unlease(self, key: str, request: str) -> None:
        """End the lease of a request that will not read the value; twice is harmless."""
        async with self._gate():
            await self._redis.zrem(lease_key(key), request)

    async def account(self) -> Account:
        """What the store holds now."""
        async with self._gate():
            return Account(*await self._eval(self._redis, scripts.ACCOUNT, ""))

    async def wait(self, key: str, timeout_s: float) -> bool:
        """Wait while another owner computes. False: the reservation has ended without a value, or time is over."""
        self.counters.waits += 1
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
        async with self._gate(), self._redis.pipeline(transaction=True) as pipe:
            pipe.exists(embedding_key(key))
            pipe.exists(reservation_key(key))
            ready, busy = await pipe.execute()
        return bool(ready), bool(busy)

    async def _write(self, key: str, owner: str, value: bytes, request: str) -> tuple[int, int, int]:
        # A plain SET beside the script: as its argument, a large value would be copied twice more.
        staged = f"{scripts.PREFIX}staged:{owner}"
        budget = self._budget
        arguments = owner, self._ttl_ms, budget.max_bytes, int(budget.policy == "refcount"), request, budget.lease_ms
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(staged, value, px=_STAGED_MS)
            self._eval(pipe, scripts.COMMIT, key, *arguments, more=(reservation_key(key), staged))
            return cast(tuple[int, int, int], (await pipe.execute())[1])

    async def _forgo(self, key: str, request: str) -> None:
        # Read from memory, but a use nevertheless: for the order of eviction, and for the lease.
        with contextlib.suppress(UnavailableError):
            await self.touch(key, request)

    async def _discard(self, key: str, value: bytes) -> None:
        async with self._gate():
            await self._eval(self._redis, scripts.DISCARD, key, value[: codec.CHECKSUM_BYTES])

    def _eval(
        self, redis: Redis, script: str, key: str, *arguments: str | bytes | int, more: tuple[str, ...] = ()
    ) -> Any:
        names = (f"{scripts.PREFIX}recency", f"{scripts.PREFIX}sizes", embedding_key(key), *more)
        return redis.eval(script, len(names), *names, key, *arguments)

    def _count(self, hit: bool) -> None:
        self.counters.hits += hit
        self.counters.misses += not hit


async def _unpack(key: str, value: bytes, rows: int | None) -> dict[str, Tensor]:
    if len(value) <= _SMALL_BYTES:
        return codec.unpack(key, value, rows)
    return await asyncio.to_thread(codec.unpack, key, value, rows)
