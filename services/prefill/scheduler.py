"""Which prompts hold blocks and what the next step computes. Pure: no tensor, no socket, no clock."""

from __future__ import annotations

from common.engine.chunking import plan_chunks
from common.worker.blocks import SequenceBlocks
from common.worker.queue import WaitingQueue
from services.prefill.job import Job
from triptych.errors import InternalError

Step = list[tuple[Job, int]]
"""Jobs with the number of tokens to compute next."""


class PrefillScheduler:
    """Prompts get their blocks in order of arrival and keep them until decode has acknowledged the transfer."""

    def __init__(self, blocks: SequenceBlocks, step_tokens: int, max_waiting: int) -> None:
        self._blocks = blocks
        self._step_tokens = step_tokens
        self._waiting = WaitingQueue(blocks, max_waiting, self._can_admit)
        self._active: dict[Job, None] = {}
        self._step: Step = []

    @property
    def num_waiting(self) -> int:
        """Prompts without blocks."""
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Prompts with blocks: being computed, or computed and on their way to decode."""
        return len(self._active)

    @property
    def pending_tokens(self) -> int:
        """Tokens not yet computed, over all prompts."""
        return sum(job.sequence.num_uncomputed for job in (*self._waiting, *self._active))

    def submit(self, job: Job) -> None:
        """Queue a prompt, or take it at once if it has blocks.

        ContextLengthError if it can never fit, ResourceExhaustedError if the queue is full.
        """
        if job.has_blocks:
            self._activate(job)
            return
        self._waiting.require_room(job.sequence.num_given, "the prompt has", "messages")
        # Whoever finds room by now is no longer waiting.
        self._admit()
        self._waiting.push(job)

    def plan(self) -> Step:
        """Admit what fits and spend the step's token budget; empty when nothing can be computed now."""
        self._admit()
        able = {str(index): job for index, job in enumerate(self._active) if self._can_compute(job)}
        waiting = [job.as_waiting(key) for key, job in able.items()]
        return [(able[chunk.key], chunk.tokens) for chunk in plan_chunks(waiting, self._step_tokens)]

    def begin_step(self, step: Step) -> None:
        """Until `end_step` the blocks of these jobs stay."""
        self._step = step
        self._blocks.begin_step(job.sequence for job, _ in step)

    def end_step(self) -> None:
        """The step is over."""
        self._blocks.end_step(job.sequence for job, _ in self._step)
        self._step = []

    def release(self, job: Job) -> None:
        """Forget a prompt in whatever state and free its blocks; idempotent."""
        self._waiting.discard(job)
        self._active.pop(job, None)
        if not job.has_blocks:
            self._blocks.free(job.sequence)

    def validate(self) -> None:
        """InternalError unless exactly the active prompts hold blocks. For tests, between steps."""
        own = [job for job in self._active if not job.has_blocks]
        self._blocks.validate(job.sequence for job in own)
        held = {block for job in own for block in job.sequence.block_table}
        if len(held) != self._blocks.cache.num_in_use:
            raise InternalError(f"{self._blocks.cache.num_in_use} blocks are in use, {len(held)} by known prompts")

    def _admit(self) -> None:
        while (job := self._waiting.pop()) is not None:
            self._blocks.admit(job.sequence, job.sequence.num_given, job.reusable)
            self._activate(job)

    def _activate(self, job: Job) -> None:
        self._active[job] = None
        job.admit()

    def _can_compute(self, job: Job) -> bool:
        # Borrowed blocks are gone as soon as their owner gives the request up.
        gone = job.sequence.missing_blocks(job.sequence.num_given, self._blocks.block_size) > 0
        return not (job.computed or job.pulling or gone)

    def _can_admit(self, job: Job) -> bool:
        return self._blocks.can_admit(job.sequence, job.sequence.num_given, job.reusable)
