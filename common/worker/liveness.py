"""Lets the health check see a frozen engine, so that whoever runs the process restarts it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from common.rpc.server import RpcServer


class Engine(Protocol):
    """What can freeze; see `common.worker.loop.StepLoop.alive`."""

    def alive(self, stall_s: float) -> bool:
        """False once it has stopped, or while one step runs for longer than `stall_s` seconds."""


class Liveness:
    """Answers health checks of `liveness` from the state of the engines, at most a second late."""

    def __init__(self, server: RpcServer, engines: Iterable[Engine], stall_s: float) -> None:
        self._server, self._engines, self._stall_s = server, list(engines), stall_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the engines run by now."""
        self._task = asyncio.create_task(self._watch(), name="liveness")

    async def close(self) -> None:
        """The answer stays what it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await self._server.set_alive(all(engine.alive(self._stall_s) for engine in self._engines))
            await asyncio.sleep(min(1.0, self._stall_s / 4))
