"""Fetches one picture within bounds of time, size and hops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import httpcore

from services.router.remote.connecting import CheckedBackend
from services.router.remote.failures import naming, network_errors
from services.router.remote.policy import Target, UrlPolicy
from triptych.errors import PayloadTooLargeError, RemoteImageError
from triptych.version import VERSION

MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = ((b"user-agent", f"triptych/{VERSION}".encode()), (b"accept", b"image/*"), (b"accept-encoding", b"identity"))


@dataclass(frozen=True)
class Version:
    """How the server behind `url`, the last hop, names the version of its content; both empty: not at all."""

    url: str
    etag: str = ""
    last_modified: str = ""


@dataclass(frozen=True)
class Fetched:
    """`data` is None when the version that the caller has is still the one there."""

    data: bytes | None
    version: Version


class Fetcher:
    """`backend` decides which addresses are connected to, `tls` whom to trust. Close it at the end."""

    def __init__(
        self,
        policy: UrlPolicy,
        backend: CheckedBackend,
        tls: ssl.SSLContext,
        max_bytes: int,
        timeout_s: float,
    ) -> None:
        self._policy, self._max_bytes, self._timeout_s = policy, max_bytes, timeout_s
        self._backend = backend
        # No proxies, cookies, credentials or content codings: nothing of it is httpcore's business. And no idle
        # connections: one that its server is closing just then would fail a request that nothing is wrong with.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls, network_backend=backend, max_connections=None, max_keepalive_connections=0
        )

    async def fetch(self, url: str, param: str, known: Version | None = None) -> Fetched:
        """The bytes behind `url`; nothing is sent when they are still of the version `known`.

        RemoteImageError, or PayloadTooLargeError over the limit, naming `param`.
        """
        with naming(param):
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._follow(self._policy.target(url), known)
            except TimeoutError as error:
                raise RemoteImageError(f"the image was not delivered within {self._timeout_s:g} s") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
        self._backend.close()

    async def _follow(self, target: Target, known: Version | None) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            with network_errors(target.authority):
                answer = await self._request(target, known)
            if isinstance(answer, Fetched):
                return answer
            target = self._policy.redirect(target, answer)
        raise RemoteImageError(f"the image's URL redirects more than {MAX_REDIRECTS} times")

    async def _request(self, target: Target, known: Version | None) -> Fetched | str:
        """The content, or where it is said to be."""
        # Another hop's version says nothing about this one, even where the names look alike.
        asked = known if known is not None and known.url == target.url else None
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        headers = [(b"host", target.authority.encode()), *_HEADERS, *_conditions(asked)]
        async with self._pool.stream(b"GET", url, headers=headers) as response:
            if response.status == 304 and asked is not None:
                return Fetched(None, asked)
            if response.status in _REDIRECTS and (location := _header(response, b"location")):
                return location
            return await self._receive(response, target)

    async def _receive(self, response: httpcore.Response, target: Target) -> Fetched:
        if response.status != 200:
            raise RemoteImageError(f"{target.authority} answered {response.status}")
        if _header(response, b"content-encoding").lower() not in ("", "identity"):
            raise RemoteImageError(f"{target.authority} sent a compressed body although none was asked for")
        announced = _header(response, b"content-length")
        self._check_size(int(announced) if announced.isdecimal() else 0)
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            self._check_size(len(body))
        version = Version(target.url, _header(response, b"etag"), _header(response, b"last-modified"))
        return Fetched(bytes(body), version)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise PayloadTooLargeError(f"the remote image is over the limit of {self._max_bytes} bytes")


def _conditions(known: Version | None) -> Iterator[tuple[bytes, bytes]]:
    if known is not None and known.etag:
        yield b"if-none-match", known.etag.encode("latin-1")
    elif known is not None and known.last_modified:
        yield b"if-modified-since", known.last_modified.encode("latin-1")


def _header(response: httpcore.Response, name: bytes) -> str:
    values = [value for key, value in response.headers if key.lower() == name]
    return values[0].decode("latin-1").strip() if values else ""
