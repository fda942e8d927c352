"""Schedulers of prefill and decode: who holds blocks, who runs, and that nothing is lost. No tensors, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from common.engine.blocks import BlockPool
from common.engine.prefix_cache import PrefixCache
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import ImageSpan, Positions
from common.kv.sender import KvPush
from common.worker.blocks import SequenceBlocks
from common.identity.blocks import BlockChain, KeyedSpan
from services.decode.job import Job as DecodeJob
from services.decode.scheduler import DecodeScheduler
from services.prefill.job import Job as PrefillJob
from services.prefill.scheduler import PrefillScheduler
from triptych.errors import ContextLengthError, ResourceExhaustedError


def sequence(length: int, max_tokens: int = 1, images: tuple[ImageSpan, ...] = ()) -> Sequence:
    positions = Positions(np.arange(length, dtype=np.int64)[None], length)
    return Sequence("r", [1] * length, positions, SamplingParams(max_tokens=max_tokens, temperature=0), images)


@pytest.fixture
def blocks() -> SequenceBlocks:
    return SequenceBlocks(PrefixCache(BlockPool(8)), block_size=4)


@pytest.fixture
def decode(blocks: SequenceBlocks) -> Iterator[DecodeScheduler]:
    scheduler = DecodeScheduler(blocks, max_waiting=2, max_running=3)
    yield scheduler
    scheduler.validate()


def decode_job(length: int, max_tokens: int = 4) -> DecodeJob:
    return DecodeJob(sequence(length, max_tokens))


def test_decode_admits_in_order_and_as_far_as_blocks_go(decode: DecodeScheduler) -> None:
    jobs = [decode_job(12), decode_job(12), decode_job(4)]
    for job in jobs:
        decode.submit(job)
    assert decode.admit() == jobs[:2], "the small one must not overtake"
    decode.release(jobs[0])
    assert decode.admit() == [jobs[2]]


def test_decode_refuses_what_can_never_fit_with_both_numbers(decode: DecodeScheduler) -> None:
    with pytest.raises(ContextLengthError, match=r"33 tokens.*holds 32") as caught:
        decode.submit(decode_job(29))
    assert caught.value.param == "max_tokens"


def test_decode_queue_is_bounded(decode: DecodeScheduler) -> None:
    for _ in range(2):
        decode.submit(decode_job(28))
    decode.admit()
    decode.submit(decode_job(28))
    with pytest.raises(ResourceExhaustedError) as caught:
        decode.submit(decode_job(28))
    assert caught.value.retry_after_s


def test_decode_runs_no_more_than_it_may(decode: DecodeScheduler) -> None:
    jobs = [decode_job(1, 1) for _ in range(4)]
    for job in jobs[:2]:
        decode.submit(job)
    decode.admit()
    for job in jobs[2:]:
        decode.submit(job)
    assert decode.admit() == [jobs[2]]


def test_blocks_of_a_cancelled_job_survive_the_running_step(decode: DecodeScheduler, blocks: SequenceBlocks) -> None:
    job = decode_job(8)
    decode.submit(job)
    decode.admit()
    decode.activate(job)
    assert decode.begin_step() == [job]
    decode.release(job)
    decode.release(job)
    assert not decode.is_running(job)
    assert blocks.cache.num_in_use == 3, "the step still writes there"
    decode.end_step()
    assert blocks.cache.num_in_use == 0


@pytest.fixture
async def prefill(blocks: SequenceBlocks) -> PrefillScheduler:
    return PrefillScheduler(blocks, step_tokens=8, max_waiting=2)


class SilentPush(KvPush):
    """A transfer that goes nowhere: scheduling does not depend on it."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def ready(self, tokens: int) -> None:
        self.ends.append(tokens)


def prefill_job(length: int, images: tuple[ImageSpan, ...] = ()) -> PrefillJob:
    return PrefillJob(sequence(length, images=images), SilentPush())


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
