"""The scheduler of prefill: which prompts hold blocks, and what the next step computes."""

from __future__ import annotations

import asyncio

import pytest

from common.families.base import ImageSpan
from common.identity.blocks import BlockChain, KeyedSpan
from common.worker.blocks import SequenceBlocks
from services.prefill.job import Job
from services.prefill.scheduler import PrefillScheduler
from tests.scheduling import eight_blocks, prefill_job
from triptych.errors import ContextLengthError


@pytest.fixture
def blocks() -> SequenceBlocks:
    return eight_blocks()


@pytest.fixture
async def prefill(blocks: SequenceBlocks) -> PrefillScheduler:
    return PrefillScheduler(blocks, step_tokens=8, max_waiting=2)


async def test_prefill_cuts_a_long_prompt_to_the_budget(prefill: PrefillScheduler) -> None:
    job = prefill_job(20)
    prefill.submit(job)
    assert prefill.plan() == [(job, 8)]
    job.sequence.num_computed = 16
    assert prefill.plan() == [(job, 4)]
    assert prefill.pending_tokens == 4


async def test_prefill_computes_what_stands_before_a_missing_image(prefill: PrefillScheduler) -> None:
    job = prefill_job(20, (ImageSpan(3, 5, (1, 2, 2)), ImageSpan(12, 5, (1, 2, 2))))
    prefill.submit(job)
    assert prefill.plan() == [(job, 3)]
    job.sequence.num_computed = 3
    assert prefill.plan() == []
    job.images[0] = {}
    assert prefill.plan() == [(job, 8)]


def compute(prefill: PrefillScheduler) -> dict[Job, int]:
    """One step."""
    step = dict(prefill.plan())
    for job, count in step.items():
        job.sequence.num_computed += count
    return step


async def test_short_prompts_pass_a_long_one_and_do_not_starve_it(prefill: PrefillScheduler) -> None:
    long = prefill_job(24)
    prefill.submit(long)
    assert compute(prefill) == {long: 8}
    passed = 0
    while not long.computed:
        short = prefill_job(4)
        prefill.submit(short)
        step = compute(prefill)
        assert step[long] >= 4, "half of the budget is the oldest one's"
        passed += short.computed
        prefill.release(short)
    assert passed == 4, "each short one was finished in the step after it came"


async def test_a_prompt_that_finds_no_room_keeps_its_embeddings(prefill: PrefillScheduler) -> None:
    """D11: however many steps it waits, nothing is fetched or encoded again."""
    first, waiting = prefill_job(30), prefill_job(12, (ImageSpan(2, 6, (2, 3)),))
    prefill.submit(first)
    prefill.submit(waiting)
    waiting.images[0] = {}
    while not first.computed:
        assert waiting not in compute(prefill)
    prefill.release(first)
    assert compute(prefill) == {waiting: 8}


async def test_prefill_keeps_blocks_until_release(prefill: PrefillScheduler, blocks: SequenceBlocks) -> None:
    job = prefill_job(20)
    prefill.submit(job)
    prefill.plan()
    job.sequence.num_computed = 20
    assert prefill.plan() == []
    assert blocks.cache.num_in_use == 5
    prefill.release(job)
    prefill.release(job)
    prefill.validate()
    assert blocks.cache.num_in_use == 0


async def test_prefill_refuses_a_prompt_larger_than_the_pool(prefill: PrefillScheduler) -> None:
    with pytest.raises(ContextLengthError, match=r"33 tokens.*holds 32"):
        prefill.submit(prefill_job(33))


async def test_prefill_computes_nothing_while_blocks_are_being_fetched(prefill: PrefillScheduler) -> None:
    job = prefill_job(20)
    job.pulling = True
    prefill.submit(job)
    assert prefill.plan() == []
    assert job.admitted.is_set()
    job.pulling = False
    assert prefill.plan() == [(job, 8)]


async def test_prefill_begins_after_the_cached_prefix(prefill: PrefillScheduler, blocks: SequenceBlocks) -> None:
    first, second = prefill_job(20), prefill_job(20)
    for job in (first, second):
        job.sequence.chain = BlockChain(b"root", 4)
    prefill.submit(first)
    prefill.plan()
    first.sequence.num_computed = 20
    blocks.publish(first.sequence, since=0)
    prefill.release(first)
    prefill.submit(second)
    assert prefill.plan() == [(second, 4)], "the last token is computed in any case"
    assert (second.cached_tokens, blocks.cache.num_in_use) == (16, 5)
    prefill.validate()


async def test_an_image_inside_the_cached_prefix_is_not_waited_for(
    prefill: PrefillScheduler, blocks: SequenceBlocks
) -> None:
    span = ImageSpan(1, 6, (1, 2, 3))
    first, second = prefill_job(13, (span,)), prefill_job(13, (span,))
    for job in (first, second):
        job.sequence.chain = BlockChain(b"root", 4, [KeyedSpan(1, 6, "ab" * 32)])
    first.images[0] = {}
    prefill.submit(first)
    prefill.plan()
    first.sequence.num_computed = 13
    blocks.publish(first.sequence, since=0)
    prefill.release(first)
    prefill.submit(second)
    assert prefill.plan() == [(second, 1)]


async def test_prefill_failure_nobody_waits_for_is_silent(prefill: PrefillScheduler) -> None:
    job = prefill_job(3)
    job.fail(ContextLengthError("x"))
    job.fail(ContextLengthError("y"))
    del job
    await asyncio.sleep(0)
    assert prefill.num_waiting == 0


async def test_a_prompt_in_borrowed_blocks_is_left_out_when_they_are_gone(prefill: PrefillScheduler) -> None:
    borrowed, own = prefill_job(12), prefill_job(12)
    borrowed.has_blocks = True
    borrowed.sequence.block_table = [90, 91, 92]
    prefill.submit(borrowed)
    prefill.submit(own)
    assert prefill.plan() == [(borrowed, 8)]
    borrowed.sequence.block_table = []
    assert prefill.plan() == [(own, 8)]


async def test_a_prompt_with_blocks_does_not_queue_for_room(prefill: PrefillScheduler) -> None:
    first, waiting, borrowed = prefill_job(32), prefill_job(8), prefill_job(8)
    borrowed.has_blocks = True
    borrowed.sequence.block_table = [90, 91]
    for job in (first, waiting):
        prefill.submit(job)
        prefill.plan()
    prefill.submit(borrowed)
    assert borrowed in [job for job, _ in prefill.plan()]
    assert prefill.num_waiting == 1
