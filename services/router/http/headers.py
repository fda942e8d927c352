"""Ends connections whose next request does not begin: uvicorn itself waits for headers for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # uvicorn has one protocol for each of its parsers; here both look the same.
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = object

MAX_HEADER_BYTES = 64 * 1024


class HeadersInTime(Protocol):
    """Mixed into one of uvicorn's protocols. Headers must arrive `headers_timeout_s` after a connection is made, or
    after their first byte on one that is kept alive, and within `MAX_HEADER_BYTES`.
    """

    headers_timeout_s: float
    # None before the first request, whatever the annotation there says.
    cycle: Any
    _timer: asyncio.TimerHandle | None = None
    _received = 0

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, unless they have come, or another request is being answered."""
        last = self.cycle
        super().data_received(data)
        if self.cycle is not last or (last is not None and not last.response_complete):
            self._begun()
            return
        self._wait()
        # A request that was refused early may still be sending its body, which is dropped.
        if last is None or not last.more_body:
            self._received += len(data)
        if self._received > MAX_HEADER_BYTES:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._begun()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.headers_timeout_s, self._end)

    def _begun(self) -> None:
        self._received = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self.transport.abort()


def in_time(protocol: type[Any], timeout_s: float) -> type[Any]:
    """`protocol` with a limit of `timeout_s` seconds for headers."""
    return type(protocol.__name__, (HeadersInTime, protocol), {"headers_timeout_s": timeout_s})
