"""Ends connections that only cost something. uvicorn itself waits for ever, for headers as for a client that does not
read, and takes in connections without a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # uvicorn has one protocol for each of its parsers; here both look the same.
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = object

MAX_HEADER_BYTES = 64 * 1024
LEAST_TAKEN_BYTES = 32 * 1024


@dataclass(frozen=True)
class ConnectionLimits:
    """Headers must arrive `headers_s` after a connection is made, or after their first byte on one that is kept alive,
    and within `MAX_HEADER_BYTES`. A client must take `LEAST_TAKEN_BYTES` of what waits for it in each `send_s`. Beyond
    `most` connections at the same time new ones are closed, after `refused` was told.
    """

    headers_s: float
    send_s: float
    most: int
    refused: Callable[[], None]


class LimitedConnection(Protocol):
    """Mixed into one of uvicorn's protocols."""

    limits: ConnectionLimits
    # None before the first request, whatever the annotation there says.
    cycle: Any
    _timer: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _received = 0

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            self.limits.refused()
            self._end()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, unless they have come, or another request is being answered."""
        last = self.cycle
        # A request that was refused early may still be sending its body, which is dropped.
        in_body = last is not None and last.more_body
        super().data_received(data)
        if self.cycle is not last:
            self._begun()
            return
        if last is None or last.response_complete:
            self._wait()
        if not in_body:
            self._received += len(data)
        if self._received > MAX_HEADER_BYTES:
            self._end()

    def on_message_complete(self) -> None:
        """Note the end of a body, which httptools' protocol does not if its request was refused; h11 needs no help."""
        super().on_message_complete()  # type: ignore[misc]
        self.cycle.more_body = False

    def pause_writing(self) -> None:
        """Wait for a client that does not read."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """It reads."""
        self._reads()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._begun()
        self._reads()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.headers_s, self._end)

    def _begun(self) -> None:
        self._received = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_reader(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._sending = self.loop.call_later(self.limits.send_s, self._check_reader, unsent)

    def _check_reader(self, unsent: int) -> None:
        if unsent - self.transport.get_write_buffer_size() < LEAST_TAKEN_BYTES:
            self._end()
        else:
            self._wait_for_reader()

    def _reads(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _end(self) -> None:
        self.transport.abort()


def limited(protocol: type[Any], limits: ConnectionLimits) -> type[Any]:
    """`protocol` within `limits`."""
    return type(protocol.__name__, (LimitedConnection, protocol), {"limits": limits})
