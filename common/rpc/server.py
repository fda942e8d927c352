"""One gRPC server of a process: options, error mapping, health, reflection, drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.rpc.address import host_port
from common.rpc.instance import InstanceInterceptor
from common.rpc.interceptor import ErrorInterceptor
from common.rpc.tls import ServerTls
from triptych.channel import SERVER_OPTIONS
from triptych.errors import ConfigError

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LIVENESS = "liveness"
"""Health check service that fails when the process should be restarted; busy or draining is no reason."""
Register = Callable[[Any, grpc.aio.Server], None]


class RpcServer:
    """Add servicers, `start`, flip `set_ready`, and `drain` at the end.

    `instances` are the ids under which this process is in the registry; calls meant for others are refused.
    `send_timeout_s` is how long a caller may take nothing of its stream.
    """

    def __init__(
        self,
        host: str,
        port: int,
        instances: Collection[str] = (),
        tls: ServerTls | None = None,
        send_timeout_s: float | None = None,
    ) -> None:
        interceptors: list[grpc.aio.ServerInterceptor] = [ErrorInterceptor(send_timeout_s)]
        if instances:
            interceptors.append(InstanceInterceptor(instances))
        self._server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        self._names: list[str] = []
        self._bind, self._tls = host_port(host, port), tls
        self.port = port

    def add(self, register: Register, servicer: Any, full_name: str) -> None:
        """Register a generated servicer; `full_name` is for example "triptych.v1.KvService"."""
        register(servicer, self._server)
        self._names.append(full_name)

    async def start(self) -> int:
        """Bind and listen, not ready yet; returns the port. ConfigError when the address is taken."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection([*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        try:
            self.port = self._listen()
        except RuntimeError as exc:
            raise ConfigError(f"cannot listen on {self._bind}: the address is in use or not ours") from exc
        await self._server.start()
        await self.set_alive(True)
        await self.set_ready(False)
        return self.port

    def _listen(self) -> int:
        if self._tls is None:
            return self._server.add_insecure_port(self._bind)
        return self._server.add_secure_port(self._bind, self._tls.credentials())

    async def set_ready(self, ready: bool) -> None:
        """Answer health checks of every service and of "" accordingly."""
        status = SERVING if ready else NOT_SERVING
        for name in ["", *self._names]:
            await self._health.set(name, status)

    async def set_alive(self, alive: bool) -> None:
        """Answer health checks of `LIVENESS` accordingly."""
        await self._health.set(LIVENESS, SERVING if alive else NOT_SERVING)

    async def drain(self, grace_s: float, notice_s: float = 0.0) -> None:
        """Readiness off, `notice_s` for callers to see it, then no new calls and `grace_s` for running ones."""
        await self.set_ready(False)
        await asyncio.sleep(notice_s)
        await self._server.stop(grace_s)
