"""A cluster whose workers are real processes, to be killed at named points, with two routers in the test's own loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from tests.valkey import ValkeyServer
from triptych import AsyncClient
from triptych.channel import open_channel
from triptych.v1.worker_pb2 import GetLoadRequest, GetLoadResponse, WorkerInfo, WorkerRole
from triptych.v1.worker_pb2_grpc import WorkerServiceStub

ROLES = {
    "encoder": WorkerRole.WORKER_ROLE_ENCODER,
    "prefill": WorkerRole.WORKER_ROLE_PREFILL,
    "decode": WorkerRole.WORKER_ROLE_DECODE,
}
PATIENCE_S = 60.0
Act = Callable[[], Awaitable[None]]


class Control:
    """Where workers ask at their points. Only the armed point stops anybody, and only its first visitor."""

    def __init__(self) -> None:
        self._point, self.hits = "", 0
        self._act: Act | None = None

    async def start(self) -> int:
        """The port."""
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def arm(self, point: str, act: Act) -> None:
        """Do `act` while the next visitor of `point` waits."""
        self._point, self._act, self.hits = point, act, 0

    async def hit(self) -> None:
        """Do what is armed, once."""
        if self._act is not None:
            act, self._act = self._act, None
            self.hits += 1
            await act()

    async def close(self) -> None:
        """Nobody asks any more."""
        self._server.close()
        await self._server.wait_closed()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        point = (await reader.readline()).decode().strip()
        if point == self._point:
            await self.hit()
        with suppress(ConnectionError):
            writer.write(b"!")
            await writer.drain()
        writer.close()


@dataclass
class Cluster:
    """Everything that a test of failover needs."""

    valkey: ValkeyServer
    control: Control
    zygote: asyncio.subprocess.Process
    model: Path
    routers: list[RouterProcess] = field(default_factory=list)
    clients: list[AsyncClient] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def router(self) -> RouterProcess:
        """The first router, which serves the requests under test."""
        return self.routers[0]

    def workers(self, role: str) -> list[WorkerInfo]:
        """Those that the first router would use."""
        return self.router.routing.cluster.ready(ROLES[role])

    async def start(self, role: str) -> None:
        """One more worker; returns once the first router uses it."""
        known = {info.instance_id for info in self.workers(role)} if self.routers else set()
        assert self.zygote.stdin is not None
        assert self.zygote.stdout is not None
        self.zygote.stdin.write(f"{role}\n".encode())
        pid = int(await self.zygote.stdout.readline())
        if not self.routers:
            return
        new: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while not (new := [one.instance_id for one in self.workers(role) if one.instance_id not in known]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        self.pids[new[0]] = pid

    def busy(self, role: str) -> WorkerInfo:
        """The worker of a role that has the request, else any."""
        workers = self.workers(role)
        return max(workers, key=lambda info: self.router.ledger.count(info.instance_id))

    async def kill(self, role: str) -> None:
        """SIGKILL the busy worker of a role, a router, or Redis."""
        if role == "redis":
            self.valkey.stop()
        elif role == "router":
            await self.close_router()
        else:
            os.kill(self.pids.pop(self.busy(role).instance_id), signal.SIGKILL)

    async def repair(self, role: str) -> None:
        """Bring back what was killed; returns once everything is seen again."""
        if role == "redis":
            self.valkey.start()
        elif role == "router":
            await self.open_router()
        else:
            await self.start(role)
        await self.ready()

    async def ready(self) -> None:
        """Two workers of each role, and nothing missing."""
        async with asyncio.timeout(PATIENCE_S):
            while any(len(self.workers(role)) != 2 for role in ROLES):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def open_router(self) -> None:
        """One more router."""
        options = {"model": self.model, "redis_url": self.valkey.url, "http_port": 0, "drain_grace_s": 0}
        router = RouterProcess(RouterSettings.model_validate(options))
        await router.start()
        self.routers.append(router)
        self.clients.append(AsyncClient(f"127.0.0.1:{router.port}"))

    async def close_router(self) -> None:
        """The last router goes, with all that runs on it."""
        await self.routers.pop().stop()
        await self.clients.pop().close()

    async def idle(self) -> None:
        """Return once no worker holds a block or a request, and no router remembers one."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_idle():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for router in self.routers:
            router.ledger.validate()

    async def _is_idle(self) -> bool:
        if any(router.ledger.total or router.routing.turnstile.running for router in self.routers):
            return False
        addresses = {info.address for role in ("prefill", "decode") for info in self.workers(role)}
        try:
            loads = [await _load(address) for address in addresses]
        except grpc.aio.AioRpcError:
            # The router has not yet noticed that this one is dead.
            return False
        return not any(load.blocks_in_use or load.running_requests or load.waiting_requests for load in loads)


async def _load(address: str) -> GetLoadResponse:
    async with open_channel(address) as channel:
        return await WorkerServiceStub(channel).GetLoad(GetLoadRequest())


@asynccontextmanager
async def running_cluster(model: Path) -> AsyncIterator[Cluster]:
    """Two workers of each role and two routers."""
    valkey, control = ValkeyServer(), Control()
    valkey.start()
    port = await control.start()
    command = [sys.executable, "-m", "tests.fault.zygote", valkey.url, str(model), str(port)]
    pipe = asyncio.subprocess.PIPE
    zygote = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    cluster = Cluster(valkey, control, zygote, model)
    try:
        await cluster.open_router()
        for role in (*ROLES, *ROLES):
            await cluster.start(role)
        await cluster.open_router()
        yield cluster
    finally:
        while cluster.routers:
            await cluster.close_router()
        assert zygote.stdin is not None
        zygote.stdin.close()
        await zygote.wait()
        await control.close()
        valkey.close()
