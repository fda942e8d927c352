"""Runs the HTTP application in the process's own event loop."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette

from common.rpc.address import host_port, listen
from common.rpc.tls import ServerTls, check_identity
from services.router.http.connections import ConnectionLimits, limited
from triptych.errors import ConfigError
from triptych.tls import read_pem

KEEP_ALIVE_S = 75
LAST_WORDS_S = 2.0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        config.load()
        config.http_protocol_class = limited(config.http_protocol_class, limits)
        super().__init__(config)
        self.tried = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell whoever waits that it accepts connections, or that it never will."""
        try:
            await super().startup(sockets)
        finally:
            self.tried.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, which drains both interfaces together."""
        yield


def _tls_options(tls: ServerTls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    check_identity(tls.cert, tls.key)
    options: dict[str, Any] = {"ssl_certfile": str(tls.cert), "ssl_keyfile": str(tls.key)}
    if tls.client_ca is not None:
        read_pem(tls.client_ca)
        options |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


class HttpServer:
    """`start`, then `stop`."""

    def __init__(
        self,
        app: Starlette,
        host: str,
        port: int,
        grace_s: float,
        limits: ConnectionLimits,
        tls: ServerTls | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            # An upgrade would take its connection out of the limits.
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Longer than clients keep idle connections, so that they close first and never write into a closed one.
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(grace_s),
            **_tls_options(tls),
        )
        self._server = _Server(config, limits)
        self._address = (host, port)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port. ConfigError when the address is taken."""
        try:
            listener = listen(*self._address)
            # Inherited by every connection. Without it the body of an answer waits for the client to acknowledge its
            # headers, which takes 40 ms; asyncio would see to it, but does not recognise sockets made here.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host_port(*self._address)}: {error.strerror}") from error
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")
        await self._server.tried.wait()
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        """No new connections; running answers end within the grace. Twice is harmless."""
        task, self._task = self._task, None
        if task is not None:
            self._server.should_exit = True
            await task
            if ending := self._server.server_state.tasks:
                # Out of grace and cancelled; each of them still tells its client so.
                await asyncio.wait(ending, timeout=LAST_WORDS_S)
