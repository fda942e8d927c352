"""Bodies and uploads on their way in: how many bytes of them are held at once, and how long one may take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.router.caller import Caller
from triptych.errors import ResourceExhaustedError

RETRY_AFTER_S = 1.0


class Incoming:
    """The bounds that no limit of a single body can give: `max_bytes` over all callers, `within_s` seconds for each."""

    def __init__(self, max_bytes: int, within_s: float) -> None:
        self._max_bytes, self._within_s = max_bytes, within_s
        self.held_bytes = 0

    @asynccontextmanager
    async def one(self, caller: Caller, what: str) -> AsyncIterator[Share]:
        """Receive `what` inside the block; DeadlineExceededError when it takes too long. Its share ends with it."""
        share = Share(self)
        try:
            async with caller.in_time(what, self._within_s):
                yield share
        finally:
            self.held_bytes -= share.size_bytes

    def take(self, size_bytes: int) -> None:
        """For `Share`: ResourceExhaustedError when there is no room. What comes alone is always taken."""
        if self.held_bytes and self.held_bytes + size_bytes > self._max_bytes:
            raise ResourceExhaustedError(
                f"{self._max_bytes} bytes of requests are being received; try again", retry_after_s=RETRY_AFTER_S
            )
        self.held_bytes += size_bytes


class Share:
    """The room of one body."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self.size_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        """Have room for so many bytes in all; raises as `Incoming.take`."""
        more = max(0, size_bytes - self.size_bytes)
        self._incoming.take(more)
        self.size_bytes += more
