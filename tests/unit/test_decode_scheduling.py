"""The scheduler of decode: who holds blocks, who runs, who is parked, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.worker.blocks import SequenceBlocks
from services.decode.job import Job
from services.decode.scheduler import DecodeScheduler
from tests.scheduling import ParkingTwin, decode_job, eight_blocks, sequence
from triptych.errors import ContextLengthError, ResourceExhaustedError, UnavailableError


@pytest.fixture
def blocks() -> SequenceBlocks:
    return eight_blocks()


@pytest.fixture
def parking() -> ParkingTwin:
    return ParkingTwin()


@pytest.fixture
def decode(blocks: SequenceBlocks, parking: ParkingTwin) -> Iterator[DecodeScheduler]:
    scheduler = DecodeScheduler(blocks, parking, max_waiting=2, max_running=3, watermark=1)
    yield scheduler
    scheduler.validate()


def test_decode_admits_in_order_and_leaves_the_watermark(decode: DecodeScheduler) -> None:
    jobs = [decode_job(12), decode_job(20), decode_job(4)]
    for job in jobs[:2]:
        decode.submit(job)
    assert decode.admit() == jobs[:1], "3 and 5 of 8 blocks leave none to grow into"
    decode.submit(jobs[2])
    assert decode.admit() == [], "the small one must not overtake"
    decode.release(jobs[0])
    assert decode.admit() == jobs[1:]


def run(decode: DecodeScheduler, *jobs: Job) -> None:
    """Bring jobs to where their first token is there."""
    for job in jobs:
        decode.submit(job)
        decode.admit()
        decode.activate(job)
        job.sequence.num_computed = job.sequence.num_prompt
        job.sequence.append(1)


def step(decode: DecodeScheduler) -> list[Job]:
    """One decode step; gives the jobs that advanced."""
    begun = decode.begin_step()
    for copy in begun.copies:
        copy()
    for job in begun.jobs:
        job.sequence.num_computed += 1
        job.sequence.append(1)
    decode.end_step()
    decode.validate()
    return begun.jobs


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
