"""Schedulers under random events: nobody waits for ever, no block is lost, and no complete block is written again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.engine.blocks import BlockPool
from common.engine.chunking import cut_before
from common.engine.prefix_cache import PrefixCache
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import ImageSpan, Positions
from common.identity.blocks import BlockChain, KeyedSpan
from common.worker.blocks import SequenceBlocks
from services.decode.job import Job as DecodeJob
from services.decode.scheduler import DecodeScheduler
from services.decode.step import Copy, Step
from services.prefill.job import Job as PrefillJob
from services.prefill.scheduler import PrefillScheduler
from tests.scheduling import ParkingTwin, SilentDelivery
from triptych.errors import ContextLengthError, InternalError, ResourceExhaustedError

BLOCK = 4
POOL = 8


def chained(kind: int, length: int, max_tokens: int, spans: tuple[ImageSpan, ...] = ()) -> Sequence:
    """A sequence that shares all full blocks with others of its kind."""
    positions = Positions(np.arange(length, dtype=np.int64)[None], length)
    keyed = [KeyedSpan(span.offset, span.length, "ab" * 32) for span in spans]
    chain = BlockChain(b"root", BLOCK, keyed)
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Sequence("r", [kind] * length, positions, params, spans, whole_images=bool(spans), chain=chain)


class Memory:
    """What each block of the pool holds: the tokens up to the last one written there. Also where it is parked."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._parked: dict[Sequence, list[tuple[int, ...]]] = {}
        self._computed: dict[Sequence, int] = {}

    def write(self, sequence: Sequence, since: int) -> None:
        for end in range(since + 1, sequence.num_computed + 1):
            self._tokens[sequence.block_table[(end - 1) // BLOCK]] = tuple(sequence.token_ids(0, end))

    def overwrite(self, blocks: list[int]) -> None:
        self._tokens.update(dict.fromkeys(blocks, ()))

    def check(self, sequence: Sequence) -> None:
        """All that counts as computed is there."""
        for begin in range(0, sequence.num_computed, BLOCK):
            end = min(begin + BLOCK, sequence.num_computed)
            assert self._tokens[sequence.block_table[begin // BLOCK]][:end] == tuple(sequence.token_ids(0, end))

    def can_park(self, sequence: Sequence) -> bool:
        return len(self._computed) < 2

    def park(self, sequence: Sequence) -> Copy:
        self._computed[sequence] = sequence.num_computed
        blocks, kept = list(sequence.block_table), self._parked.setdefault(sequence, [])
        return lambda: kept.extend(self._tokens.get(block, ()) for block in blocks)

    def unpark(self, sequence: Sequence) -> Copy:
        have, kept = sequence.num_computed // BLOCK, self._parked.pop(sequence)
        sequence.num_computed = self._computed.pop(sequence)
        blocks = sequence.block_table[have:]
        return lambda: self._tokens.update(zip(blocks, kept[have:], strict=False))

    def forget(self, sequence: Sequence) -> None:
        self._computed.pop(sequence, None)
        self._parked.pop(sequence, None)


class DecodeMachine(RuleBasedStateMachine):
    """Requests of a few kinds come, get their KV, step, are cancelled in every state, and all end.

    What happens on the event loop falls before a step or in the middle of it, where it must not disturb its copies;
    then prefill, on the same pool, takes whatever is free.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks = SequenceBlocks(PrefixCache(BlockPool(POOL)), BLOCK)
        self.memory = Memory()
        self.decode = DecodeScheduler(self.blocks, self.memory, max_waiting=3, max_running=4, watermark=1)
        self.reserved: list[DecodeJob] = []
        self.known: list[DecodeJob] = []

    @initialize()
    def two_that_do_not_fit_to_their_ends(self) -> None:
        for kind in (1, 2):
            self.submit(kind, 3 * BLOCK, 16)

    @rule(kind=st.integers(1, 2), length=st.integers(1, 12) | st.integers(1, 40), max_tokens=st.integers(1, 24))
    def submit(self, kind: int, length: int, max_tokens: int) -> None:
        job = DecodeJob(chained(kind, length, max_tokens))
        try:
            self.decode.submit(job)
        except ContextLengthError:
            assert length + max_tokens > POOL * BLOCK
        except ResourceExhaustedError:
            assert self.decode.num_waiting == 3
        else:
            self.known.append(job)

    @rule()
    def admit(self) -> None:
        self.reserved += self.decode.admit()

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step(len(self.known))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def kv_arrives(self, data: st.DataObject) -> None:
        self.arrive(data.draw(st.sampled_from(self.reserved)))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.known)))

    @rule(leaves=st.integers(0, 20))
    def step(self, leaves: int) -> None:
        step = self.decode.begin_step()
        for job in self.known[leaves : leaves + 1]:
            self.end(job)
        self.admit_and_fill()
        foreign = self.blocks.cache.allocate(self.blocks.cache.num_free)
        self.memory.overwrite(foreign)
        self.execute(step)
        self.blocks.cache.free(foreign)

    @invariant()
    def books_balance(self) -> None:
        self.decode.validate()

    def teardown(self) -> None:
        """Whatever happened, all that is left comes to its end: no deadlock."""
        for _ in range(400):
            if not self.decode.num_admitted + self.decode.num_waiting:
                break
            self.admit_and_fill()
            self.execute(self.decode.begin_step())
        assert self.decode.num_admitted + self.decode.num_waiting == 0
        assert self.blocks.cache.num_in_use == 0

    def admit_and_fill(self) -> None:
        self.admit()
        for job in list(self.reserved):
            self.arrive(job)

    def arrive(self, job: DecodeJob) -> None:
        self.reserved.remove(job)
        job.published, job.sequence.num_computed = job.sequence.num_computed, job.sequence.num_given
        self.memory.write(job.sequence, job.published)
        self.decode.activate(job)
        self.advance(job)

    def execute(self, step: Step) -> None:
        for copy in step.copies:
            copy()
        for job in step.jobs:
            job.sequence.num_computed += 1
            self.memory.write(job.sequence, job.sequence.num_computed - 1)
            self.memory.check(job.sequence)
        self.decode.end_step()
        for job in step.jobs:
            if self.decode.is_running(job):
                self.advance(job)

    def advance(self, job: DecodeJob) -> None:
        self.blocks.publish(job.sequence, job.published)
        job.published = job.sequence.num_computed
        job.sequence.append(3)
        if job.sequence.num_outputs >= job.sequence.params.max_tokens:
            self.end(job)

    def end(self, job: DecodeJob) -> None:
        self.decode.release(job)
        for jobs in (self.known, self.reserved):
            if job in jobs:
                jobs.remove(job)


TestDecodeScheduler = DecodeMachine.TestCase
TestDecodeScheduler.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def run_to_first_token(blocks: SequenceBlocks, decode: DecodeScheduler, job: DecodeJob) -> None:
    decode.submit(job)
    assert decode.admit() == [job]
    held, job.sequence.num_computed = job.sequence.num_computed, job.sequence.num_given
    decode.activate(job)
    blocks.publish(job.sequence, held)
    job.sequence.append(3)


def test_siblings_hold_the_blocks_of_their_prompt_once() -> None:
    """n = 3 with a prompt of three full blocks and one token: three shared blocks, and one each."""
    blocks = SequenceBlocks(PrefixCache(BlockPool(POOL)), BLOCK)
    decode = DecodeScheduler(blocks, ParkingTwin(), max_waiting=3, max_running=4, watermark=0)
    jobs = [DecodeJob(chained(1, 3 * BLOCK + 1, 8)) for _ in range(3)]
    for job in jobs:
        run_to_first_token(blocks, decode, job)
    assert blocks.cache.num_in_use == 3 + 3
    assert len({tuple(job.sequence.block_table[:3]) for job in jobs}) == 1
    decode.validate()


def test_writing_into_a_shared_block_is_found() -> None:
    blocks = SequenceBlocks(PrefixCache(BlockPool(POOL)), BLOCK)
    decode = DecodeScheduler(blocks, ParkingTwin(), max_waiting=3, max_running=4, watermark=0)
    first, second = (DecodeJob(chained(1, 2 * BLOCK + 1, 8)) for _ in range(2))
    for job in (first, second):
        run_to_first_token(blocks, decode, job)
    second.sequence.num_computed = BLOCK
    with pytest.raises(InternalError, match="shared and not complete"):
        decode.validate()


@pytest.mark.parametrize("offset", range(10))
def test_a_reused_prefix_never_ends_inside_an_image_kept_whole(offset: int) -> None:
    span = ImageSpan(offset, 2 * BLOCK + 1, (3, 3))
    blocks = SequenceBlocks(PrefixCache(BlockPool(POOL)), BLOCK)
    decode = DecodeScheduler(blocks, ParkingTwin(), max_waiting=3, max_running=4, watermark=0)
    job = DecodeJob(chained(1, 3 * BLOCK, 8, (span,)))
    run_to_first_token(blocks, decode, job)
    decode.release(job)
    again = chained(1, 3 * BLOCK + 1, 8, (span,))
    blocks.admit(again, again.num_given, again.num_given - 1)
    assert again.num_computed == min(3 * BLOCK, cut_before(3 * BLOCK, [span]) // BLOCK * BLOCK)
    blocks.free(again)


@given(
    st.lists(st.tuples(st.integers(1, POOL * BLOCK), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 20),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
async def test_every_prompt_is_computed_whatever_comes_together(
    prompts: list[tuple[int, bool]], step_tokens: int, late: int
) -> None:
    """Prompts with or without an image kept whole that is ready `late` steps after them; the pool holds one of them."""
    blocks = SequenceBlocks(PrefixCache(BlockPool(POOL)), BLOCK)
    prefill = PrefillScheduler(blocks, step_tokens, max_waiting=8)
    jobs = []
    for length, pictured in prompts:
        spans = (ImageSpan(length // 3, max(1, length // 3), (1, 1)),) if pictured else ()
        jobs.append(PrefillJob(chained(1 + pictured, length, 1, spans), SilentDelivery()))
        prefill.submit(jobs[-1])
    for step in range(8 * POOL * BLOCK + late):
        for job in jobs:
            job.images = [{} if step >= late else None for _ in job.images]
        for job, count in prefill.plan():
            assert count > 0
            job.sequence.num_computed += count
            blocks.publish(job.sequence, job.sequence.num_computed - count)
        prefill.validate()
        for job in [each for each in jobs if each.computed]:
            prefill.release(job)
            jobs.remove(job)
        if not jobs:
            break
    assert not jobs
    assert blocks.cache.num_in_use == 0
