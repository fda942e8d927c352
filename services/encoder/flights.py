"""One computation a key inside this process, for when the store cannot arrange it among all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Flights:
    """A lock for each key in use; those who waited find what the first one left in memory."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Run the block while nobody else has `key`."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            self._leave(key)

    def _leave(self, key: str) -> None:
        lock, users = self._locks.pop(key)
        if users > 1:
            self._locks[key] = lock, users - 1
