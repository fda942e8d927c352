"""The engine loop: failures stay with their step, and no wake-up is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from common.worker.loop import StepLoop
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
        self.loop = StepLoop(self.plan, self.execute, self.apply, self.fail, ThreadPoolExecutor(1))

    def plan(self) -> int | None:
        if self.frees_while_planning:
            self.frees_while_planning -= 1
            self.loop.wake()
            return None
        return self.todo.pop(0) if self.todo else None

    def execute(self, work: int) -> int:
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


async def test_what_planning_itself_sets_free_is_not_forgotten() -> None:
    steps = Steps()
    steps.todo, steps.expected, steps.frees_while_planning = [1], 1, 3
    await steps.run()
    assert steps.done == [1]
