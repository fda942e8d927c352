"""The prefill engine's sign of life: given while it steps, withheld once it hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from common.worker.parts import Parts
from services.prefill.engine import PrefillEngine
from services.prefill.job import Job
from services.prefill.settings import PrefillSettings
from tests.scheduling import SilentDelivery, eight_blocks, sequence
from triptych.errors import InternalError

LEASE_S = 0.006


class Renewed(SilentDelivery):
    """Counts signs of life."""

    def __init__(self) -> None:
        self.signs = 0
        self.third = asyncio.Event()

    def renew(self) -> None:
        self.signs += 1
        if self.signs == 3:
            self.third.set()


class Hanging:
    """A runner whose step lasts until `end` is set."""

    def __init__(self) -> None:
        self.began, self.end = threading.Event(), threading.Event()

    def execute(self, *_: object) -> None:
        self.began.set()
        self.end.wait()
        raise InternalError("the step was given up")


@pytest.fixture
def runner() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.end.set()


@pytest.fixture
def engine(runner: Hanging) -> PrefillEngine:
    """Not started; any step is taken for one that hangs."""
    settings = PrefillSettings.model_construct(step_tokens=8, max_waiting=2, pull="never", engine_stall_s=0.0)
    parts = SimpleNamespace(blocks=eight_blocks(), settings=settings, runner=runner)
    return PrefillEngine(cast(Parts, parts), settings, ThreadPoolExecutor(1))


async def test_signs_of_life_go_on_while_the_engine_has_nothing_to_do(engine: PrefillEngine) -> None:
    engine.start()
    delivery = Renewed()
    keeping = asyncio.create_task(engine.keep_lease(Job(sequence(4), delivery), LEASE_S))
    async with asyncio.timeout(10):
        await delivery.third.wait()
    keeping.cancel()
    await engine.close()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_an_engine_that_hangs_in_a_step_gives_none(engine: PrefillEngine, runner: Hanging) -> None:
    engine.start()
    job = Job(sequence(4), delivery := Renewed())
    engine.submit(job)
    assert await asyncio.to_thread(runner.began.wait, 10)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.keep_lease(job, LEASE_S), 10 * LEASE_S)
    assert delivery.signs == 0
    runner.end.set()
    with pytest.raises(InternalError):
        await job.first
    await engine.close()


async def test_a_lease_that_nothing_prolongs_is_let_be(engine: PrefillEngine) -> None:
    engine.start()
    await engine.keep_lease(Job(sequence(4), delivery := Renewed()), 0)
    assert delivery.signs == 0
    await engine.close()
