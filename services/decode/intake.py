"""Requests on their way in: they queue for blocks, then their blocks are reserved until their prompt's KV is there."""

from __future__ import annotations

import asyncio
import time

from common.engine.layout import blocks_for
from common.engine.sequence import Sequence
from common.kv.reservations import INVALID, Reservations
from services.decode.job import Job
from services.decode.scheduler import DecodeScheduler
from triptych.errors import FailedPreconditionError


class Intake:
    """Owns the reservations of one decode worker, and knows whose they are."""

    def __init__(self, scheduler: DecodeScheduler, reservations: Reservations, block_size: int) -> None:
        self._scheduler = scheduler
        self.reservations = reservations
        self._block_size = block_size
        self._jobs: dict[str, Job] = {}

    def submit(self, job: Job) -> None:
        """Queue a job, or reserve its blocks at once. Raises what `DecodeScheduler.submit` raises."""
        # Whoever finds room by now is no longer waiting.
        self.admit()
        self._scheduler.submit(job)
        self.admit()

    def admit(self) -> None:
        """Reserve blocks for those who wait, as far as there are any; they get their reservation as an event."""
        for job in self._scheduler.admit():
            held = job.sequence.num_computed // self._block_size
            missing = job.sequence.block_table[held : blocks_for(job.sequence.num_given, self._block_size)]
            job.reservation = self.reservations.open(missing, held, time.monotonic())
            self._jobs[job.reservation.id] = job
            job.emit(job.reservation)

    def sequence(self, reservation_id: str) -> Sequence:
        """What waits for its prompt's KV. FailedPreconditionError for a ticket that is not valid."""
        return self._job(reservation_id).sequence

    def released(self, reservation_id: str) -> asyncio.Event:
        """Set when the request has been given up or has ended; raises as `sequence`."""
        return self._job(reservation_id).released

    def renew(self, reservation_id: str) -> None:
        """Whoever computes the prompt in place lives: prolong its lease, if it still has one."""
        job = self._jobs.get(reservation_id)
        if job is not None and job.reservation is not None:
            self.reservations.renew(job.reservation, time.monotonic())

    def take(self, reservation_id: str) -> Job:
        """The prompt's KV is there, and the reservation ends; raises as `sequence`."""
        job = self._job(reservation_id)
        self.close(job)
        return job

    def close(self, job: Job) -> None:
        """End a job's reservation, if it has one; idempotent."""
        if job.reservation is not None:
            self.reservations.close(job.reservation.id)
            self._jobs.pop(job.reservation.id, None)

    def expired(self) -> list[Job]:
        """Those whose KV did not come in time."""
        return [self._jobs[reservation.id] for reservation in self.reservations.expired(time.monotonic())]

    def _job(self, reservation_id: str) -> Job:
        job = self._jobs.get(reservation_id)
        if job is None:
            raise FailedPreconditionError(INVALID)
        return job
