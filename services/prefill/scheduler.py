"""Which prompts hold blocks and what the next step computes. Pure: no tensor, no socket, no clock."""

from __future__ import annotations

from collections import deque

from common.engine.chunking import Waiting, plan_chunks
from common.worker.blocks import SequenceBlocks
from services.prefill.job import Job
from triptych.errors import ContextLengthError, InternalError, ResourceExhaustedError

Step = list[tuple[Job, int]]
"""Jobs with the number of tokens to compute next."""


class PrefillScheduler:
    """Prompts get their blocks in order of arrival and keep them until decode has acknowledged the transfer."""

    def __init__(self, blocks: SequenceBlocks, step_tokens: int, max_waiting: int) -> None:
        self._blocks = blocks
        self._step_tokens = step_tokens
        self._max_waiting = max_waiting
        self._waiting: deque[Job] = deque()
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
        length = job.sequence.num_prompt
        if not self._blocks.can_ever_admit(length):
            pool = self._blocks.cache.num_blocks * self._blocks.block_size
            raise ContextLengthError(f"the prompt has {length} tokens, the KV pool holds {pool}", param="messages")
        if len(self._waiting) >= self._max_waiting and not self._can_admit(job):
            raise ResourceExhaustedError(f"{self._max_waiting} prompts are waiting for KV blocks", retry_after_s=1.0)
        self._waiting.append(job)

    def plan(self) -> Step:
        """Admit what fits and spend the step's token budget; empty when nothing can be computed now."""
        self._admit()
        able = {str(index): job for index, job in enumerate(self._active) if self._can_compute(job)}
        waiting = [
            Waiting(key, job.sequence.num_computed, job.sequence.num_prompt, job.ready) for key, job in able.items()
        ]
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
        if job in self._waiting:
            self._waiting.remove(job)
        self._active.pop(job, None)
        if not job.has_blocks:
            self._blocks.free(job.sequence)

    def validate(self) -> None:
        """InternalError unless exactly the active prompts hold blocks. For tests, between steps."""
        self._blocks.cache.validate()
        own = [job for job in self._active if not job.has_blocks]
        held = {block for job in own for block in job.sequence.block_table}
        if len(held) != self._blocks.cache.num_in_use:
            raise InternalError(f"{self._blocks.cache.num_in_use} blocks are in use, {len(held)} by known prompts")

    def _admit(self) -> None:
        while self._waiting and self._can_admit(self._waiting[0]):
            job = self._waiting.popleft()
            self._blocks.admit(job.sequence, job.sequence.num_prompt, job.reusable)
            self._activate(job)

    def _activate(self, job: Job) -> None:
        self._active[job] = None
        job.admit()

    def _can_compute(self, job: Job) -> bool:
        # Borrowed blocks are gone as soon as their owner gives the request up.
        gone = job.sequence.missing_blocks(job.sequence.num_prompt, self._blocks.block_size) > 0
        return not (job.computed or job.pulling or gone)

    def _can_admit(self, job: Job) -> bool:
        return self._blocks.can_admit(job.sequence, job.sequence.num_prompt, job.reusable)
