"""Which requests hold blocks and which run in the next step. Pure: no tensor, no socket, no clock."""

from __future__ import annotations

from collections import deque

from common.worker.blocks import SequenceBlocks
from services.decode.job import Job
from triptych.errors import ContextLengthError, InternalError, ResourceExhaustedError


class DecodeScheduler:
    """First come, first served. A job is waiting (no blocks), reserved (its KV is on the way) or running.

    Blocks for the whole answer are taken at admission, so a running job can never be left without room.
    """

    def __init__(self, blocks: SequenceBlocks, max_waiting: int, max_running: int) -> None:
        self._blocks = blocks
        self._max_waiting = max_waiting
        self._max_running = max_running
        self._waiting: deque[Job] = deque()
        self._reserved: set[Job] = set()
        self._running: dict[Job, None] = {}

    @property
    def num_waiting(self) -> int:
        """Jobs without blocks."""
        return len(self._waiting)

    @property
    def num_admitted(self) -> int:
        """Jobs with blocks, reserved or running."""
        return len(self._reserved) + len(self._running)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ContextLengthError if it can never fit, ResourceExhaustedError if the queue is full."""
        if not self._blocks.can_ever_admit(job.most_tokens):
            pool = self._blocks.cache.num_blocks * self._blocks.block_size
            raise ContextLengthError(
                f"prompt and max_tokens make {job.most_tokens} tokens, the KV pool holds {pool}", param="max_tokens"
            )
        if len(self._waiting) >= self._max_waiting and not self._can_admit(job):
            raise ResourceExhaustedError(f"{self._max_waiting} requests are waiting for KV blocks", retry_after_s=1.0)
        self._waiting.append(job)

    def admit(self) -> list[Job]:
        """Give blocks to waiting jobs in order, as far as they go; returns the newly reserved."""
        admitted: list[Job] = []
        while self._waiting and self._can_admit(self._waiting[0]):
            job = self._waiting.popleft()
            self._blocks.admit(job.sequence, job.most_tokens, job.sequence.num_prompt)
            self._reserved.add(job)
            admitted.append(job)
        return admitted

    def activate(self, job: Job) -> None:
        """The KV of a reserved job is there: it runs from the next step on."""
        if job not in self._reserved:
            raise InternalError("a job without a reservation was activated")
        self._reserved.remove(job)
        self._running[job] = None

    def begin_step(self) -> list[Job]:
        """The running jobs, in order of arrival; until `end_step` their blocks stay."""
        batch = list(self._running)
        self._blocks.begin_step(job.sequence for job in batch)
        return batch

    def end_step(self) -> None:
        """The step is over."""
        self._blocks.end_step()

    def is_running(self, job: Job) -> bool:
        """False once a job was released, for example during the step that computed its next token."""
        return job in self._running

    def release(self, job: Job) -> None:
        """Forget a job in whatever state and free its blocks; idempotent."""
        if job in self._waiting:
            self._waiting.remove(job)
        self._reserved.discard(job)
        self._running.pop(job, None)
        self._blocks.free(job.sequence)

    def validate(self) -> None:
        """InternalError unless exactly the admitted jobs hold blocks. For tests, between steps."""
        self._blocks.cache.validate()
        held = {block for job in (*self._reserved, *self._running) for block in job.sequence.block_table}
        if len(held) != self._blocks.cache.num_in_use:
            raise InternalError(f"{self._blocks.cache.num_in_use} blocks are in use, {len(held)} by known jobs")

    def _can_admit(self, job: Job) -> bool:
        fits = self._blocks.can_admit(job.sequence, job.most_tokens, job.sequence.num_prompt)
        return fits and self.num_admitted < self._max_running
