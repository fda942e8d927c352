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
from common.identity.blocks import BlockChain, KeyedSpan
from common.kv.tally import Path
from common.worker.blocks import SequenceBlocks
from services.decode.job import Job as DecodeJob
from services.decode.scheduler import DecodeScheduler
from services.decode.step import Copy
from services.prefill.job import Job as PrefillJob
from services.prefill.scheduler import PrefillScheduler
from triptych.errors import ContextLengthError, ResourceExhaustedError, UnavailableError
from triptych.v1.types_pb2 import GeneratedToken


def sequence(length: int, max_tokens: int = 1, images: tuple[ImageSpan, ...] = ()) -> Sequence:
    positions = Positions(np.arange(length, dtype=np.int64)[None], length)
    return Sequence("r", [1] * length, positions, SamplingParams(max_tokens=max_tokens, temperature=0), images)


@pytest.fixture
def blocks() -> SequenceBlocks:
    return SequenceBlocks(PrefixCache(BlockPool(8)), block_size=4)


class ParkingTwin:
    """Remembers how far a sequence was computed, as the real one does, without its KV; and the copies made."""

    def __init__(self, capacity: int = 9) -> None:
        self.capacity = capacity
        self.computed: dict[Sequence, int] = {}
        self.copied: list[tuple[str, list[int]]] = []

    def can_park(self, sequence: Sequence) -> bool:
        return len(self.computed) < self.capacity

    def park(self, sequence: Sequence) -> Copy:
        self.computed[sequence] = sequence.num_computed
        blocks = list(sequence.block_table)
        return lambda: self.copied.append(("out", blocks))

    def unpark(self, sequence: Sequence) -> Copy:
        sequence.num_computed = self.computed.pop(sequence)
        blocks = list(sequence.block_table)
        return lambda: self.copied.append(("back", blocks))

    def forget(self, sequence: Sequence) -> None:
        self.computed.pop(sequence, None)


@pytest.fixture
def parking() -> ParkingTwin:
    return ParkingTwin()


@pytest.fixture
def decode(blocks: SequenceBlocks, parking: ParkingTwin) -> Iterator[DecodeScheduler]:
    scheduler = DecodeScheduler(blocks, parking, max_waiting=2, max_running=3, watermark=1)
    yield scheduler
    scheduler.validate()


def decode_job(length: int, max_tokens: int = 4) -> DecodeJob:
    return DecodeJob(sequence(length, max_tokens))


def test_decode_admits_in_order_and_leaves_the_watermark(decode: DecodeScheduler) -> None:
    jobs = [decode_job(12), decode_job(20), decode_job(4)]
    for job in jobs[:2]:
        decode.submit(job)
    assert decode.admit() == jobs[:1], "3 and 5 of 8 blocks leave none to grow into"
    decode.submit(jobs[2])
    assert decode.admit() == [], "the small one must not overtake"
    decode.release(jobs[0])
    assert decode.admit() == jobs[1:]


def run(decode: DecodeScheduler, *jobs: DecodeJob) -> None:
    """Bring jobs to where their first token is there."""
    for job in jobs:
        decode.submit(job)
        decode.admit()
        decode.activate(job)
        job.sequence.num_computed = job.sequence.num_prompt
        job.sequence.append(1)


def step(decode: DecodeScheduler) -> list[DecodeJob]:
    """One decode step; gives the jobs that advanced."""
    step = decode.begin_step()
    for copy in step.copies:
        copy()
    for job in step.jobs:
        job.sequence.num_computed += 1
        job.sequence.append(1)
    decode.end_step()
    decode.validate()
    return step.jobs


def test_decode_parks_the_newest_and_resumes_it_before_anybody_new(
    decode: DecodeScheduler, parking: ParkingTwin
) -> None:
    old, new, waiting = decode_job(12, 16), decode_job(12, 16), decode_job(4)
    run(decode, old, new)
    advanced = [len(step(decode)) for _ in range(7)]
    assert advanced == [2, 2, 2, 2, 0, 1, 1], "8 blocks hold two sequences of 16 tokens; one step only copies"
    assert decode.preemptions == 1
    decode.submit(waiting)
    assert decode.admit() == [], "a parked one comes first"
    decode.release(old)
    assert step(decode) == [new]
    assert new.sequence.num_computed == 17
    assert [way for way, _ in parking.copied] == ["out", "back"]
    decode.release(new)
    assert decode.admit() == [waiting]


def test_blocks_being_parked_are_nobody_elses_until_they_are_copied(
    decode: DecodeScheduler, blocks: SequenceBlocks
) -> None:
    """Also when the parked one is given up meanwhile, so that somebody new could be admitted."""
    old, new = decode_job(12, 16), decode_job(12, 16)
    run(decode, old, new)
    for _ in range(4):
        step(decode)
    begun = decode.begin_step()
    assert (begun.jobs, begun.parked) == ([], [new])
    decode.submit(decode_job(4))
    decode.release(new)
    assert decode.admit() == []
    assert blocks.cache.num_free == 0
    decode.end_step()
    assert blocks.cache.num_free == 4
    assert len(decode.admit()) == 1


def test_what_is_parked_is_copied_out_before_it_is_copied_back(decode: DecodeScheduler, parking: ParkingTwin) -> None:
    jobs = [decode_job(4, 24) for _ in range(3)]
    run(decode, *jobs)
    while decode.num_admitted:
        for job in step(decode):
            if job.sequence.num_outputs > 24:
                decode.release(job)
    ways = [way for way, _ in parking.copied]
    assert ways.count("out") == ways.count("back") == decode.preemptions > 1
    assert all(ways[:count].count("out") >= ways[:count].count("back") for count in range(len(ways)))


def test_decode_alone_never_preempts(decode: DecodeScheduler) -> None:
    job = decode_job(12, 20)
    run(decode, job)
    assert all(step(decode) == [job] for _ in range(19))
    assert decode.preemptions == 0


async def test_decode_without_parking_space_hands_the_request_back(blocks: SequenceBlocks) -> None:
    decode = DecodeScheduler(blocks, ParkingTwin(0), max_waiting=2, max_running=3, watermark=1)
    old, new = decode_job(12, 16), decode_job(12, 16)
    run(decode, old, new)
    for _ in range(5):
        step(decode)
    with pytest.raises(UnavailableError, match="preempted"):
        _ = [event async for event in new.events()]
    assert blocks.cache.num_in_use == len(old.sequence.block_table)


def test_decode_refuses_what_can_never_fit_with_both_numbers(decode: DecodeScheduler) -> None:
    with pytest.raises(ContextLengthError, match=r"33 tokens.*holds 32") as caught:
        decode.submit(decode_job(29))
    assert caught.value.param == "max_tokens"


def test_decode_queue_is_bounded(decode: DecodeScheduler) -> None:
    decode.submit(decode_job(28))
    decode.admit()
    for _ in range(2):
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
    run(decode, job)
    assert decode.begin_step().jobs == [job]
    decode.release(job)
    decode.release(job)
    assert not decode.is_running(job)
    assert blocks.cache.num_in_use == 3, "the step still writes there"
    decode.end_step()
    assert blocks.cache.num_in_use == 0


@pytest.fixture
async def prefill(blocks: SequenceBlocks) -> PrefillScheduler:
    return PrefillScheduler(blocks, step_tokens=8, max_waiting=2)


class SilentDelivery:
    """A transfer that goes nowhere: scheduling does not depend on it."""

    sent_bytes = 0
    path: Path = "grpc"

    def ready(self, tokens: int) -> None:
        """Nothing is sent."""

    def layer_ready(self, layer: int, tokens: int) -> None:
        """Nothing is sent."""

    def keep(self) -> None:
        """There is no lease."""

    async def finish(self, first: GeneratedToken) -> None:
        """Nobody receives it."""

    async def acknowledged(self) -> None:
        """At once."""

    def abort(self) -> None:
        """Nothing to undo."""


def prefill_job(length: int, images: tuple[ImageSpan, ...] = ()) -> PrefillJob:
    return PrefillJob(sequence(length, images=images), SilentDelivery())


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


def compute(prefill: PrefillScheduler) -> dict[PrefillJob, int]:
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


def test_whoever_waits_for_room_is_told_when_blocks_come_back(blocks: SequenceBlocks) -> None:
    told: list[int] = []
    blocks.cache.on_free(lambda: told.append(blocks.cache.num_free))
    one = sequence(8)
    blocks.admit(one, 8, 0)
    blocks.begin_step([one])
    blocks.free(one)
    assert told == [], "a step still writes there"
    blocks.end_step([one])
    assert told == [8]
