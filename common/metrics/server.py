"""A page over HTTP for Prometheus, on the event loop: what it shows belongs to the loop, and needs no locks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST

from common.rpc.address import host_port, listen
from triptych.errors import ConfigError

PATH = b"/metrics"
# Whoever is slower, or says more than this, is no Prometheus.
HEAD_BYTES = 16 * 2**10
TIMEOUT_S = 10.0


class MetricsServer:
    """Answers GET of `/metrics` with `render()`: `start`, then `close`."""

    def __init__(self, host: str, port: int, render: Callable[[], bytes]) -> None:
        self._host, self._port, self._render = host, port, render
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; returns the port. ConfigError when the address is taken."""
        try:
            listener = listen(self._host, self._port)
            self._server = await asyncio.start_server(self._accept, sock=listener, limit=HEAD_BYTES)
        except OSError as error:
            where = host_port(self._host, self._port)
            raise ConfigError(f"cannot serve metrics on {where}: {error.strerror}") from error
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and hang up."""
        self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(TIMEOUT_S):
                    await self._answer(reader, writer)
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(_response(head, self._render))
        await writer.drain()


def _response(head: bytes, render: Callable[[], bytes]) -> bytes:
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET":
        return _message(b"405 Method Not Allowed", b"")
    if words[1].partition(b"?")[0] != PATH:
        return _message(b"404 Not Found", b"")
    return _message(b"200 OK", render())


def _message(status: bytes, body: bytes) -> bytes:
    lines = (
        b"HTTP/1.1 " + status,
        b"Content-Type: " + CONTENT_TYPE_LATEST.encode(),
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
