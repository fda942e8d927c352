"""What passes the store by: files for the next Encode, and embeddings for prefill. Bounded in bytes and in time."""

from __future__ import annotations

import time
from collections.abc import Callable

from common.store.memory import MemoryTier

CHUNK_BYTES = 2**20


class Shelf:
    """Holds a value for `ttl_s` seconds. When there is no room, the oldest goes. Awaits nothing."""

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._values: MemoryTier[tuple[bytes, float]] = MemoryTier(max_bytes)
        self.max_bytes, self._ttl_s, self._clock = max_bytes, ttl_s, clock

    @property
    def size_bytes(self) -> int:
        """Held now, the expired included that nobody has looked for since."""
        return self._values.bytes

    def put(self, name: str, value: bytes) -> bool:
        """Hold it; False when it alone is too large."""
        return self._values.put(name, (value, self._clock() + self._ttl_s), len(value))

    def get(self, name: str) -> bytes | None:
        """The value, if it is still held."""
        value, end = self._values.get(name) or (None, 0.0)
        if value is not None and self._clock() >= end:
            self._values.drop(name)
            return None
        return value


class Desk:
    """The two shelves of an encoder's front; each gets half of `max_bytes`."""

    def __init__(
        self, max_bytes: int = 256 * 2**20, ttl_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pictures = Shelf(max_bytes // 2, ttl_s, clock)
        self.embeddings = Shelf(max_bytes // 2, ttl_s, clock)


def picture_name(scope: str, image_id: str) -> str:
    """Under what a file lies on its shelf: two scopes never see each other's."""
    return f"{scope}:{image_id}"
