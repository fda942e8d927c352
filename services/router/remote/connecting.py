"""Connects to names: resolved once, checked, and only then connected to exactly what was checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

from services.router.remote.addresses import Network, may_connect
from services.router.remote.resolving import Resolve
from triptych.errors import RemoteImageError


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """httpcore's way to the network with a check in it. A name that leads to any forbidden address is refused.

    TLS is negotiated afterwards for the name, whatever address it has.
    """

    def __init__(self, private: Sequence[Network], resolve: Resolve) -> None:
        self._private, self._resolve = tuple(private), resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See httpcore. Tries the addresses one after the other."""
        addresses = await self._resolve(host, port)
        if not all(may_connect(address, self._private) for address in addresses):
            raise RemoteImageError(f"{host} leads to an address that this server does not fetch from")
        error: httpcore.ConnectError | None = None
        for address in addresses:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore.ConnectError as failure:
                error = failure
        raise error or httpcore.ConnectError("no address")

    async def sleep(self, seconds: float) -> None:
        """See httpcore."""
        await asyncio.sleep(seconds)

    def close(self) -> None:
        """Resolve no more names."""
        self._resolve.close()
