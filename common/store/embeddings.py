"""Embeddings by key: what reservations lead to. Values are packed by `codec` and verified whenever they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import cast

from redis.asyncio import Redis
from torch import Tensor

from common.store import codec, scripts
from common.store.budget import Account, Budget
from common.store.client import embedding_key, reservation_key
from common.store.gate import Gate
from common.store.limits import ServerLimits
from common.store.packed import CHECKSUM_BYTES, Packed
from common.store.reservations import Reservation, Reservations
from common.store.sending import PIECE_BYTES, Argument, set_then
from common.store.verified import Verified
from triptych.errors import InternalError, UnavailableError

__all__ = ["VALUE_TTL_S", "EmbeddingStore", "Reservation"]

VALUE_TTL_S = 3600.0
# A value of a hundred megabytes takes a quarter of a second on an idle machine.
VALUE_TIMEOUT_S = 10.0
_STAGED_MS = 60_000


class EmbeddingStore(Reservations):
    """The values of reserved keys; the errors are those of `Reservations`.

    A value lives `ttl_s` seconds after its last use. With None, which is for readers, a use renews the time for which
    it was written.
    """

    def __init__(
        self,
        redis: Redis,
        ttl_s: float | None = VALUE_TTL_S,
        budget: Budget | None = None,
        *,
        gate: Gate | None = None,
        memory_bytes: int = 0,
    ) -> None:
        super().__init__(redis, budget, gate=gate)
        self._renew_ms = 0 if ttl_s is None else round(ttl_s * 1000)
        self._ttl_ms = self._renew_ms or round(VALUE_TTL_S * 1000)
        self._limits = ServerLimits(redis)
        self._verified = Verified(self.counters, memory_bytes)
        self.recall, self.adopt = self._verified.recall, self._verified.adopt

    async def get(self, key: str, rows: int | None = None, request: str = "") -> dict[str, Tensor] | None:
        """The tensors, on the CPU, not to be written to, or None; ends the lease of `request`.

        A bad value, or one of not `rows` rows, is counted, deleted and a miss.
        """
        if (known := self.recall(key, rows)) is not None:
            await self.forgo(key, request)
            return known
        async with self._gate(VALUE_TIMEOUT_S), self._redis.pipeline(transaction=False) as pipe:
            pipe.get(embedding_key(key))
            self._eval(pipe, scripts.TOUCH, key, self._renew_ms, request)
            value, _ = await pipe.execute()
        tensors = None if value is None else await self.adopt(key, value, rows)
        if value is not None and tensors is None:
            await self._discard(key, value)
        self.counters.looked(tensors is not None)
        return tensors

    async def size(self, key: str, rows: int | None = None) -> int | None:
        """Bytes of the ready value, or None, judged by its head only; a bad one is counted, deleted and a miss."""
        async with self._gate(), self._redis.pipeline(transaction=True) as pipe:
            pipe.getrange(embedding_key(key), 0, codec.HEAD_BYTES - 1)
            pipe.exists(embedding_key(key))
            self._eval(pipe, scripts.TOUCH, key, self._renew_ms, "")
            head, there, size = await pipe.execute()
        try:
            if there:
                codec.check_head(key, head, size, rows)
        except codec.BadValueError:
            self.counters.bad()
            await self._discard(key, head)
            there = False
        self.counters.looked(bool(there))
        return int(size) if there else None

    def pack(self, key: str, tensors: Mapping[str, Tensor], rows: int | None = None) -> Packed:
        """The value of `key`. InternalError, counted as a failed write, if a reader could not use it."""
        try:
            return codec.pack(key, tensors, rows)
        except codec.BadValueError as error:
            self.counters.write_failed()
            raise InternalError("an embedding cannot be brought into the store's format") from error

    async def put(self, key: str, owner: str, value: Packed | bytes, request: str = "") -> bool:
        """Make a packed value ready, lease it to `request`, end the reservation; evicts others as far as it must.

        False when there is no room: larger than the budget or than the server takes, or all the rest is leased. Works
        without a reservation, too: two computations of one key give the same value, so the last may win.
        """
        try:
            async with self._gate(VALUE_TIMEOUT_S):
                if len(value) > min(self._budget.max_bytes, await self._limits.largest()):
                    return await self._refuse(key, owner)
                stored, evicted, total = await self._write(key, owner, value, request)
        except UnavailableError:
            self.counters.write_failed()
            raise
        self.counters.wrote(len(value) * stored, evicted, total)
        return bool(stored)

    async def touch(self, key: str, request: str = "") -> int:
        """Count a use that needed no bytes of the value, and end the lease of `request`; the value's bytes."""
        async with self._gate():
            return int(await self._eval(self._redis, scripts.TOUCH, key, self._renew_ms, request))

    async def forgo(self, key: str, request: str) -> None:
        """`touch` as far as Redis works: what was had elsewhere is a use nevertheless, and the lease ends."""
        with contextlib.suppress(UnavailableError):
            await self.touch(key, request)

    async def account(self) -> Account:
        """What the store holds now."""
        async with self._gate():
            return Account(*await self._eval(self._redis, scripts.ACCOUNT, ""))

    async def _refuse(self, key: str, owner: str) -> bool:
        self.counters.refused += 1
        await self.release(key, owner)
        return False

    async def _write(self, key: str, owner: str, value: Packed | bytes, request: str) -> tuple[int, int, int]:
        # A plain SET before the script: as its argument, a large value would be copied twice more.
        staged = f"{scripts.PREFIX}staged:{owner}"
        budget = self._budget
        arguments = owner, self._ttl_ms, budget.max_bytes, int(budget.policy == "refcount"), request, budget.lease_ms

        def commit() -> tuple[Argument, ...]:
            checksum = b"" if isinstance(value, bytes) else value.checksum
            names = reservation_key(key), staged
            return self._script(scripts.COMMIT, key, *arguments, checksum, more=names)

        pieces = [value] if isinstance(value, bytes) else value.pieces(PIECE_BYTES)
        answer = await set_then(self._redis, staged, pieces, len(value), _STAGED_MS, commit)
        return cast(tuple[int, int, int], answer)

    async def _discard(self, key: str, value: bytes) -> None:
        async with self._gate():
            await self._eval(self._redis, scripts.DISCARD, key, value[:CHECKSUM_BYTES])
