"""The engine loop: failures stay with their step, and no wake-up is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.server import LIVENESS, SERVING, RpcServer
from common.worker.liveness import Liveness
from common.worker.loop import StepLoop
from triptych.channel import open_channel
from triptych.errors import InternalError, TriptychError


class Steps:
    """Work is a list of numbers; 13 fails in the thread, 14 when it is applied."""

    def __init__(self) -> None:
        self.todo: list[int] = []
        self.done: list[int] = []
        self.failed: list[tuple[int, TriptychError]] = []
        self.frees_while_planning = 0
        self.all_seen = asyncio.Event()
        self.expected = 0
        self.hang: Callable[[], object] = lambda: None
        self.loop = StepLoop(self.plan, self.execute, self.apply, self.fail, ThreadPoolExecutor(1))

    def plan(self) -> int | None:
        if self.frees_while_planning:
            self.frees_while_planning -= 1
            self.loop.wake()
            return None
        return self.todo.pop(0) if self.todo else None

    def execute(self, work: int) -> int:
        self.hang()
        if work == 13:
            raise ZeroDivisionError
        return work

    def apply(self, work: int, result: int) -> None:
        if work == 14:
            raise ZeroDivisionError
        self.done.append(result)
        self.note()

    def fail(self, work: int, error: TriptychError) -> None:
        self.failed.append((work, error))
        self.note()

    def note(self) -> None:
        if len(self.done) + len(self.failed) == self.expected:
            self.all_seen.set()

    async def run(self) -> None:
        """Until nothing is left to do."""
        self.loop.start()
        self.loop.wake()
        async with asyncio.timeout(5):
            await self.all_seen.wait()
        await self.loop.close()


async def test_a_failing_step_fails_alone_wherever_it_fails() -> None:
    steps = Steps()
    steps.todo, steps.expected = [1, 13, 14, 2], 4
    await steps.run()
    assert steps.done == [1, 2]
    assert [(work, type(error)) for work, error in steps.failed] == [(13, InternalError), (14, InternalError)]


async def test_a_step_that_hangs_is_seen_and_waiting_for_work_is_not() -> None:
    steps = Steps()
    assert not steps.loop.alive(10), "not started"
    steps.loop.start()
    assert steps.loop.alive(0.0), "nothing to do"
    entered, resume = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        resume.wait(5)

    steps.todo, steps.expected, steps.hang = [1], 1, hang
    steps.loop.wake()
    await asyncio.to_thread(entered.wait, 5)
    assert not steps.loop.alive(0.0)
    assert steps.loop.alive(60), "busy"
    resume.set()
    async with asyncio.timeout(5):
        await steps.all_seen.wait()
    assert steps.loop.alive(0.0)
    await steps.loop.close()
    assert not steps.loop.alive(60), "ended"


async def test_the_health_check_follows_the_engines() -> None:
    """L05: frozen is not alive; busy, idle and alive again are."""
    engine = FrozenOrNot()
    server = RpcServer("127.0.0.1", 0)
    channel = open_channel(f"127.0.0.1:{await server.start()}")
    liveness = Liveness(server, [engine], stall_s=0.04)
    liveness.start()
    stub: Any = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=LIVENESS))
    for engine.frozen in (False, True, False):
        async with asyncio.timeout(5):
            while ((await watch.read()).status == SERVING) is engine.frozen:
                pass
    watch.cancel()
    await liveness.close()
    await channel.close()
    await server.drain(0)


class FrozenOrNot:
    """An engine that is what the test says."""

    frozen = False

    def alive(self, stall_s: float) -> bool:
        return not self.frozen


async def test_what_planning_itself_sets_free_is_not_forgotten() -> None:
    steps = Steps()
    steps.todo, steps.expected, steps.frees_while_planning = [1], 1, 3
    await steps.run()
    assert steps.done == [1]
