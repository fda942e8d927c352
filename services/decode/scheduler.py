"""Which requests hold blocks and which run in the next step. Pure: no tensor, no socket, no clock."""

from __future__ import annotations

import itertools

from common.worker.blocks import SequenceBlocks
from common.worker.queue import WaitingQueue
from services.decode.job import Job
from services.decode.step import ParkingSpace, Step
from triptych.errors import InternalError, UnavailableError


class DecodeScheduler:
    """A job is waiting (no blocks), reserved (its KV is on the way), running, or parked (preempted).

    A job is admitted with the blocks of its prompt; more come as it grows. `watermark` blocks are left free at
    admission, so that those who run can grow for a while. When a running job finds no block, the newest running one
    is parked, and its blocks are free after the step that copies them; so the oldest goes on in the next step, and
    parked ones return before anybody new is admitted. The last `unused` tokens of a prompt are never taken from the
    prefix cache.
    """

    def __init__(
        self,
        blocks: SequenceBlocks,
        parking: ParkingSpace,
        max_waiting: int,
        max_running: int,
        watermark: int,
        unused: int = 0,
    ) -> None:
        self._blocks = blocks
        self._parking = parking
        self._max_running = max_running
        self._watermark = watermark
        self._unused = unused
        self._arrivals = itertools.count()
        self._waiting = WaitingQueue(blocks, max_waiting, self._can_admit)
        self._reserved: set[Job] = set()
        self._running: list[Job] = []
        self._parked: list[Job] = []
        self._step = Step()
        self.preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Jobs that were never admitted."""
        return len(self._waiting)

    @property
    def num_admitted(self) -> int:
        """Jobs reserved, running or parked."""
        return len(self._reserved) + len(self._running) + len(self._parked)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ContextLengthError if it can never fit, ResourceExhaustedError if the queue is full."""
        self._waiting.require_room(job.most_tokens, "prompt and max_tokens make", "max_tokens")
        self._waiting.push(job)
        job.arrival = next(self._arrivals)

    def admit(self) -> list[Job]:
        """Give blocks to waiting jobs in order, as far as they go; returns the newly reserved."""
        admitted: list[Job] = []
        while (job := self._waiting.pop()) is not None:
            self._blocks.admit(job.sequence, job.sequence.num_given, job.sequence.num_given - self._unused)
            self._reserved.add(job)
            admitted.append(job)
        return admitted

    def activate(self, job: Job) -> None:
        """The KV of a reserved job is there: it runs from the next step on."""
        if job not in self._reserved:
            raise InternalError("a job without a reservation was activated")
        self._reserved.remove(job)
        self._insert(self._running, job)

    def begin_step(self) -> Step:
        """What to do next; until `end_step` the blocks of everybody in it stay."""
        self._step = step = Step()
        for job in list(self._running):
            if self._make_room(job, step):
                self._blocks.grow(job.sequence, job.sequence.num_tokens)
                step.jobs.append(job)
        if not step.parked:
            self._resume(step)
        self._blocks.begin_step(job.sequence for job in step.members)
        for job in step.parked:
            self._blocks.free(job.sequence)
        return step

    def end_step(self) -> None:
        """The step is over."""
        self._blocks.end_step(job.sequence for job in self._step.members)
        self._step = Step()

    def is_running(self, job: Job) -> bool:
        """False once a job was released, for example during the step that computed its next token."""
        return job in self._running

    def release(self, job: Job) -> None:
        """Forget a job in whatever state and free its blocks; idempotent."""
        self._waiting.discard(job)
        for place in (self._running, self._parked):
            if job in place:
                place.remove(job)
        self._reserved.discard(job)
        self._parking.forget(job.sequence)
        self._blocks.free(job.sequence)

    def validate(self) -> None:
        """InternalError unless exactly the reserved and running jobs hold blocks. For tests, between steps."""
        holders = [*self._reserved, *self._running]
        self._blocks.validate(job.sequence for job in holders)
        held = {block for job in holders for block in job.sequence.block_table}
        if len(held) != self._blocks.cache.num_in_use:
            raise InternalError(f"{self._blocks.cache.num_in_use} blocks are in use, {len(held)} by known jobs")

    def _can_admit(self, job: Job) -> bool:
        if self._parked or self.num_admitted >= self._max_running:
            return False
        # With nobody else there is nobody to leave room for.
        spare = self._watermark if self.num_admitted else 0
        length = job.sequence.num_given
        return self._blocks.can_admit(job.sequence, length, length - self._unused, spare)

    def _resume(self, step: Step) -> None:
        while self._parked:
            job = self._parked[0]
            sequence = job.sequence
            if not self._blocks.can_admit(sequence, sequence.num_tokens, sequence.num_tokens - 1):
                return
            self._parked.pop(0)
            self._blocks.admit(sequence, sequence.num_tokens, sequence.num_tokens - 1)
            job.published = sequence.num_computed
            step.copies.append(self._parking.unpark(sequence))
            step.jobs.append(job)
            self._insert(self._running, job)

    def _make_room(self, job: Job, step: Step) -> bool:
        """True if a running job can grow now. Otherwise the newest is sent out, one in a step."""
        sequence = job.sequence
        while job in self._running and not self._blocks.can_grow(sequence, sequence.num_tokens):
            if step.parked:
                return False
            self._preempt(self._running[-1], step)
        return job in self._running

    def _preempt(self, job: Job, step: Step) -> None:
        self.preemptions += 1
        if not self._parking.can_park(job.sequence):
            # Elsewhere it can go on: the caller knows prompt and tokens so far.
            job.emit(UnavailableError("preempted, and the parking space for KV is full"))
            self.release(job)
            return
        step.copies.append(self._parking.park(job.sequence))
        step.parked.append(job)
        self._running.remove(job)
        self._insert(self._parked, job)

    def _insert(self, jobs: list[Job], job: Job) -> None:
        jobs.append(job)
        jobs.sort(key=lambda each: each.arrival)
