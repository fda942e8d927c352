"""A TCP proxy between a client and a real server, that can be slow, talk nonsense, or hang up."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PIECE = 2**16


class Proxy:
    """`delay_s` holds back every piece of an answer; while `garbage`, each request is answered with random bytes.

    `instead` are answers that replace the next ones of the server. `sent_bytes` counts what clients sent, `connections`
    how often they came.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._links: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        self.garbage = False
        self.instead: list[bytes] = []
        self.sent_bytes = 0
        self.connections = 0
        self.port = 0
        self._cuts = 0

    @property
    def url(self) -> str:
        """As a Redis URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Existing links swallow everything from now on, both ways and without a word; later ones hold."""
        self._cuts += 1

    async def close(self) -> None:
        """Hang up on everybody."""
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            with contextlib.suppress(OSError):
                await self._serve(reader, writer)
        finally:
            self._links.discard(link)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            forward = asyncio.create_task(self._copy(reader, back))
            answer = asyncio.create_task(self._copy(there, writer, answers=True))
            try:
                await asyncio.wait({forward, answer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (forward, answer):
                    task.cancel()
                await asyncio.gather(forward, answer, return_exceptions=True)
        finally:
            back.close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool = False) -> None:
        cuts = self._cuts
        while piece := await source.read(PIECE):
            if cuts != self._cuts:
                continue
            if answers:
                await asyncio.sleep(self.delay_s)
            else:
                self.sent_bytes += len(piece)
            sink.write(self._changed(piece) if answers else piece)
            await sink.drain()

    def _changed(self, piece: bytes) -> bytes:
        if self.garbage:
            return os.urandom(64) + b"\r\n"
        return self.instead.pop(0) if self.instead else piece


@asynccontextmanager
async def running_proxy(port: int) -> AsyncIterator[Proxy]:
    """A listening proxy to `port` on this host."""
    proxy = Proxy(port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
