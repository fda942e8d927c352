"""The reservations that a replica holds, kept alive while it works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from common.store.embeddings import EmbeddingStore
from common.tracing.sparing import SparingLog
from triptych.errors import UnavailableError

log = SparingLog(logging.getLogger(__name__))


class Leases:
    """Renews in the background as long as it holds any; a replica that dies stops, and others take over."""

    def __init__(self, store: EmbeddingStore, ttl_s: float) -> None:
        self._store, self._ttl_s = store, ttl_s
        # By owner: when a reservation has expired unnoticed, two of this process can hold one key.
        self._keys: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def held(self, key: str, owner: str) -> AsyncIterator[None]:
        """Keep the reservation of `key` inside the block and release it after, however the block ends."""
        self._keys[owner] = key
        if self._task is None:
            self._task = asyncio.create_task(self._renew_while_held())
        try:
            yield
        finally:
            self._forget(owner)
            await self._release(key, owner)

    def _forget(self, owner: str) -> None:
        self._keys.pop(owner, None)
        if self._task is not None and not self._keys:
            self._task.cancel()
            self._task = None

    async def _renew_while_held(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            try:
                await self._store.renew(dict(self._keys), self._ttl_s)
            except UnavailableError as error:
                log.warning("reservations are not renewed: %s", error.message)

    async def _release(self, key: str, owner: str) -> None:
        # It expires by itself; failing to say so must not hide how the block ended.
        with contextlib.suppress(UnavailableError):
            await self._store.release(key, owner)
