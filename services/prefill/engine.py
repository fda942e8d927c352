"""Chunked prefill: every step computes some tokens of some prompts, whatever images are ready."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from common.engine.sampler import SampledToken, sample
from common.engine.sequence import Sequence
from common.worker.loop import StepLoop
from common.worker.parts import Parts
from services.prefill.job import Job
from services.prefill.scheduler import PrefillScheduler, Step
from services.prefill.settings import PrefillSettings
from triptych.errors import InternalError, TriptychError


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """First tokens of the prompts that a step finished, and when it ran (monotonic nanoseconds)."""

    tokens: dict[Sequence, SampledToken]
    begin_ns: int
    end_ns: int


class PrefillEngine:
    """Owns the prompts of one prefill worker. All methods run on the event loop."""

    def __init__(self, parts: Parts, settings: PrefillSettings) -> None:
        self._parts = parts
        self.scheduler = PrefillScheduler(parts.blocks, settings.step_tokens, settings.max_waiting)
        self._loop = StepLoop(self._plan, self._execute, self._apply, self._fail)

    def start(self) -> None:
        """Start stepping."""
        self._loop.start()

    async def close(self) -> None:
        """Stop; callers have left before."""
        await self._loop.close()

    def submit(self, job: Job) -> None:
        """Queue a prompt; `job.first` gets its first token. Raises what `PrefillScheduler.submit` raises."""
        self.scheduler.submit(job)
        self._loop.wake()

    def image_ready(self, job: Job, index: int, tensors: Mapping[str, Tensor]) -> None:
        """The embedding of image `index` has arrived: more of the prompt can be computed."""
        job.images[index] = tensors
        self._loop.wake()

    def release(self, job: Job) -> None:
        """The prompt is delivered or given up: free everything; idempotent."""
        self.scheduler.release(job)
        self._loop.wake()

    def _plan(self) -> Step | None:
        step = self.scheduler.plan()
        self.scheduler.begin_step(step)
        return step or None

    def _execute(self, step: Step) -> StepOutcome:
        begin = time.monotonic_ns()
        tensors = {job.sequence: job.images for job, _ in step}

        def image(sequence: Sequence, index: int) -> Mapping[str, Tensor]:
            found = tensors[sequence][index]
            if found is None:
                raise InternalError("a chunk reaches into an image that is not ready")
            return found

        result = self._parts.runner.execute([(job.sequence, count) for job, count in step], image)
        sampled = sample(result.logits, result.sequences)
        return StepOutcome(dict(zip(result.sequences, sampled, strict=True)), begin, time.monotonic_ns())

    def _apply(self, step: Step, outcome: StepOutcome) -> None:
        self.scheduler.end_step()
        for job, _ in step:
            job.account(outcome.begin_ns, outcome.end_ns)
            if not job.first.done():
                job.on_progress(job.sequence.num_computed)
                self._settle(job, outcome.tokens.get(job.sequence))

    def _settle(self, job: Job, token: SampledToken | None) -> None:
        if token is None:
            return
        if math.isnan(token.logprob):
            job.fail(InternalError("the model's output is not a number"))
        else:
            job.first.set_result(token)

    def _fail(self, step: Step, error: TriptychError) -> None:
        self.scheduler.end_step()
        for job, _ in step:
            job.fail(error)
            self.scheduler.release(job)
