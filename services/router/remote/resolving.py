"""Names to addresses, in threads of its own: a name server that hangs must not take the threads of all other work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Protocol

from services.router.remote.addresses import Address
from triptych.errors import RemoteImageError


class Resolve(Protocol):
    """The seam; tests know names of their own."""

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        """All addresses of a name; RemoteImageError when there are none."""

    def close(self) -> None:
        """Take no more names."""


class Resolver:
    """Asks the system, for at most `threads` names at the same time."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        """In the system's order of preference."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, _look_up, host, port)
        except (OSError, UnicodeError) as error:
            raise RemoteImageError(f"the name {host} cannot be resolved") from error
        return list(dict.fromkeys(ip_address(text) for text in found))

    def close(self) -> None:
        """Waits for nobody: a look-up cannot be interrupted."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    # A link-local address comes with its interface, which `ip_address` keeps.
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
