"""Which requests hold blocks and which run in the next step. Pure: no socket, no clock; copies only by `Parking`."""

from __future__ import annotations

import itertools
from typing import Protocol

from common.engine.sequence import Sequence
from common.worker.blocks import SequenceBlocks
from common.worker.queue import WaitingQueue
from services.decode.job import Job
from triptych.errors import InternalError, UnavailableError


class ParkingSpace(Protocol):
    """Where preempted KV goes; see `services.decode.parking.Parking`."""

    def can_park(self, sequence: Sequence) -> bool:
        """True if there is room."""

    def park(self, sequence: Sequence) -> None:
        """Copy out."""

    def unpark(self, sequence: Sequence) -> None:
        """Copy back."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the copy."""


class DecodeScheduler:
    """A job is waiting (no blocks), reserved (its KV is on the way), running, or parked (preempted).

    A job is admitted with the blocks of its prompt; more come as it grows. `watermark` blocks are left free at
    admission, so that those who run can grow for a while. When a running job finds no block, the newest running one
    is parked, so the oldest always goes on, and parked ones return before anybody new is admitted. The last `unused`
    tokens of a prompt are never taken from the prefix cache.
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
        self._step: list[Job] = []
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

    def begin_step(self) -> list[Job]:
        """The jobs to advance by one token, each with room for it; until `end_step` their blocks stay."""
        self._resume()
        for job in list(self._running):
            if job in self._running:
                self._make_room(job)
        self._step = list(self._running)
        self._blocks.begin_step(job.sequence for job in self._step)
        return self._step

    def end_step(self) -> None:
        """The step is over."""
        self._blocks.end_step(job.sequence for job in self._step)
        self._step = []

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

    def _resume(self) -> None:
        while self._parked:
            job = self._parked[0]
            sequence = job.sequence
            if not self._blocks.can_admit(sequence, sequence.num_tokens, sequence.num_tokens - 1):
                return
            self._parked.pop(0)
            self._blocks.admit(sequence, sequence.num_tokens, sequence.num_tokens - 1)
            found = sequence.num_computed
            self._parking.unpark(sequence)
            self._blocks.publish(sequence, since=found)
            self._insert(self._running, job)

    def _make_room(self, job: Job) -> None:
        while job in self._running and not self._blocks.can_grow(job.sequence, job.sequence.num_tokens):
            self._preempt(self._running[-1])
        if job in self._running:
            self._blocks.grow(job.sequence, job.sequence.num_tokens)

    def _preempt(self, job: Job) -> None:
        self.preemptions += 1
        if not self._parking.can_park(job.sequence):
            # Elsewhere it can go on: the caller knows prompt and tokens so far.
            job.emit(UnavailableError("preempted, and the parking space for KV is full"))
            self.release(job)
            return
        self._parking.park(job.sequence)
        self._running.remove(job)
        self._blocks.free(job.sequence)
        self._insert(self._parked, job)

    def _insert(self, jobs: list[Job], job: Job) -> None:
        jobs.append(job)
        jobs.sort(key=lambda each: each.arrival)
