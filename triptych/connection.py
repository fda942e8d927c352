"""A channel to one router with its retries, blocking and for asyncio; all that goes wrong leaves it as our errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from triptych.channel import open_blocking_channel, open_channel, with_key
from triptych.errors import ClientClosedError, InvalidArgumentError, RequestCancelledError, TriptychError
from triptych.retry import Retry, Tries
from triptych.status import rpc_errors
from triptych.tls import Tls
from triptych.v1.router_pb2_grpc import RouterServiceStub

if TYPE_CHECKING:
    from triptych.v1.router_pb2_grpc import RouterServiceAsyncStub

CALL_TIMEOUT_S = 60.0
CLOSED = "the client was closed while the answer was on its way"
T = TypeVar("T")


class _Peer:
    """What both kinds of connection know."""

    def __init__(self, address: str, retry: Retry) -> None:
        # gRPC takes either for the name of a host, and never finds it.
        if not address or address.startswith(("http:", "https:")):
            raise InvalidArgumentError(f"a router's gRPC address is host:port, not {address!r}", param="address")
        self.address, self.retry = address, retry
        self.closed = False

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Map what gRPC raises inside the block, a closed channel included."""
        try:
            with rpc_errors(self.address):
                yield
        except TriptychError as exc:
            # Whatever the call's status became by being cut off: nothing that another try could help.
            if not self.closed:
                raise
            raise RequestCancelledError(CLOSED) from exc
        except Exception as exc:
            # gRPC has no error of its own for a call on a closed channel: ValueError here, UsageError under asyncio.
            if not self.closed:
                raise
            raise ClientClosedError("the client is closed") from exc


class Connection(_Peer):
    """For the blocking client; safe to share between threads."""

    def __init__(self, address: str, retry: Retry, api_key: str | None = None, tls: Tls | None = None) -> None:
        super().__init__(address, retry)
        self._channel = open_blocking_channel(address, tls)
        self.stub = RouterServiceStub(with_key(self._channel, api_key))

    def call(self, send: Callable[[], T], left_s: Callable[[], float | None] = lambda: None) -> T:
        """What `send` returns; tried again while that may help and, where `left_s` says so, there is time."""
        tries = Tries(self.retry)
        while True:
            try:
                with self.errors():
                    return send()
            except TriptychError as error:
                time.sleep(tries.pause_s(error, left_s()))

    def close(self) -> None:
        """Cancel what is on its way; harmless twice."""
        self.closed = True
        self._channel.close()


class AsyncConnection(_Peer):
    """For the asyncio client; belongs to one event loop."""

    stub: RouterServiceAsyncStub

    def __init__(self, address: str, retry: Retry, api_key: str | None = None, tls: Tls | None = None) -> None:
        super().__init__(address, retry)
        self._channel = open_channel(address, tls)
        self.stub = RouterServiceStub(with_key(self._channel, api_key))

    async def call(self, send: Callable[[], Awaitable[T]], left_s: Callable[[], float | None] = lambda: None) -> T:
        """What `send` returns; tried again while that may help and, where `left_s` says so, there is time."""
        tries = Tries(self.retry)
        while True:
            try:
                with self.errors():
                    return await send()
            except TriptychError as error:
                await asyncio.sleep(tries.pause_s(error, left_s()))

    async def close(self) -> None:
        """Cancel what is on its way; harmless twice."""
        self.closed = True
        await self._channel.close()
