"""A web server on loopback that answers as a test says, and remembers who came."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Send = Callable[[bytes], Awaitable[None]]


@dataclass
class Page:
    """One answer; without `length` there is no Content-Length, and the body ends with the connection."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: bool = True
    etag: str = ""
    hang: bool = False
    endless: bytes = b""


@dataclass
class Visit:
    """One request as it came."""

    path: str
    headers: dict[str, str]


class Site:
    """`pages` by path. `connections` counts TCP connections, `sent` the bytes of bodies."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.visits: list[Visit] = []
        self.connections = self.sent = self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                visit = _parse(head)
                self.visits.append(visit)
                if not await self._answer(self.pages.get(visit.path, Page(b"<html>", 404)), visit, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, page: Page, visit: Visit, writer: asyncio.StreamWriter) -> bool:
        if page.hang:
            await asyncio.Event().wait()
        if page.etag and visit.headers.get("if-none-match") == page.etag:
            page = Page(status=304, etag=page.etag)
        headers = dict(page.headers) | ({"etag": page.etag} if page.etag else {})
        if page.length:
            headers["content-length"] = str(len(page.body))
        lines = [f"HTTP/1.1 {page.status} Text", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + page.body)
        self.sent += len(page.body)
        await writer.drain()
        while page.endless:
            writer.write(page.endless)
            await writer.drain()
            self.sent += len(page.endless)
        return page.length


def _parse(head: bytes) -> Visit:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Visit(first.split()[1], {name.lower(): value.strip() for name, _, value in pairs})


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """A site on a free port."""
    site = Site()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await site.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
