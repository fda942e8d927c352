"""The prefill engine's sign of life: given while it steps, withheld once it hangs."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from common.engine.blocks import BlockPool
from common.engine.prefix_cache import PrefixCache
from common.worker.blocks import SequenceBlocks
from common.worker.parts import Parts
from services.prefill.engine import PrefillEngine
from services.prefill.job import Job
from services.prefill.settings import PrefillSettings
from tests.unit.test_worker_scheduling import SilentDelivery, sequence

LEASE_S = 0.006


class Kept(SilentDelivery):
    """Counts signs of life."""

    def __init__(self) -> None:
        self.signs = 0
        self.third = asyncio.Event()

    def keep(self) -> None:
        self.signs += 1
        if self.signs == 3:
            self.third.set()


@pytest.fixture
def engine() -> PrefillEngine:
    """It has nothing to compute, and is not started."""
    settings = PrefillSettings.model_construct(step_tokens=8, max_waiting=2, pull="never", engine_stall_s=60.0)
    parts = SimpleNamespace(blocks=SequenceBlocks(PrefixCache(BlockPool(8)), block_size=4), settings=settings)
    return PrefillEngine(cast(Parts, parts), settings, ThreadPoolExecutor(1))


async def test_signs_of_life_go_on_while_the_engine_steps(engine: PrefillEngine) -> None:
    engine.start()
    kept = Kept()
    keeping = asyncio.create_task(engine.keep(Job(sequence(4), kept), LEASE_S))
    async with asyncio.timeout(10):
        await kept.third.wait()
    keeping.cancel()
    await engine.close()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_an_engine_that_does_not_step_gives_none(engine: PrefillEngine) -> None:
    kept = Kept()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.keep(Job(sequence(4), kept), LEASE_S), 10 * LEASE_S)
    assert kept.signs == 0


async def test_a_lease_that_nothing_prolongs_is_let_be(engine: PrefillEngine) -> None:
    engine.start()
    await engine.keep(Job(sequence(4), kept := Kept()), 0)
    assert kept.signs == 0
    await engine.close()
