"""Who computes which embedding: one owner a key across all processes, and the leases of the requests that wait.

States of a key: absent -> reserved (an owner, expiring) -> ready (a value, expiring) -> evicted, expired or discarded.
Each step is one script or one transaction, so nobody sees half of it, and the budget holds at every moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Any

from redis.asyncio import Redis

from common.store import scripts
from common.store.budget import Budget
from common.store.client import embedding_key, lease_key, reservation_key
from common.store.counters import StoreCounters
from common.store.gate import Gate
from common.store.sending import Argument

_POLL_S = (0.005, 0.05)


class Reservation(Enum):
    """Answer to the wish to compute a key."""

    READY = b"ready"
    RESERVED = b"reserved"
    BUSY = b"busy"


class Reservations:
    """Every method raises UnavailableError while Redis does not work, and nothing else about Redis.

    `request` names a request that needs the embedding: it gets a lease with the answer that the value is ready, and
    loses it when it has read the rows, or after the budget's `lease_s`. Without a request there is no lease.
    """

    def __init__(self, redis: Redis, budget: Budget | None = None, *, gate: Gate | None = None) -> None:
        self._redis, self._gate = redis, gate or Gate(redis)
        self._budget = budget or Budget()
        self.counters = StoreCounters()

    async def reserve(self, key: str, owner: str, ttl_s: float, request: str = "") -> Reservation:
        """Ask to compute `key`. RESERVED: the caller must put the value or release, and renew before `ttl_s` is over.

        `owner` is unique per attempt. A dead owner is forgotten after its `ttl_s`, and the next caller takes over.
        READY: `request` has a lease.
        """
        arguments = owner, round(ttl_s * 1000), request, self._budget.lease_ms
        async with self._gate():
            answer = await self._eval(self._redis, scripts.RESERVE, key, *arguments, more=(reservation_key(key),))
        return Reservation(answer)

    async def renew(self, keys: Mapping[str, str], ttl_s: float) -> None:
        """Prolong reservations: owner to key. Those that have changed hands are left alone."""
        async with self._gate(), self._redis.pipeline(transaction=False) as pipe:
            for owner, key in keys.items():
                pipe.eval(scripts.RENEW, 1, reservation_key(key), owner, round(ttl_s * 1000))
            await pipe.execute()

    async def release(self, key: str, owner: str) -> None:
        """End the reservation if `owner` has it; twice is harmless."""
        async with self._gate():
            await self._redis.eval(scripts.RELEASE, 1, reservation_key(key), owner)

    async def unlease(self, key: str, request: str) -> None:
        """End the lease of a request that will not read the value; twice is harmless."""
        async with self._gate():
            await self._redis.zrem(lease_key(key), request)

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

    def _eval(self, redis: Redis, script: str, key: str, *arguments: Argument, more: tuple[str, ...] = ()) -> Any:
        text, count, *rest = self._script(script, key, *arguments, more=more)
        return redis.eval(str(text), int(count), *rest)

    @staticmethod
    def _script(script: str, key: str, *arguments: Argument, more: tuple[str, ...] = ()) -> tuple[Argument, ...]:
        """The arguments of EVAL."""
        names = (f"{scripts.PREFIX}recency", f"{scripts.PREFIX}sizes", embedding_key(key), *more)
        return (script, len(names), *names, key, *arguments)
