"""Chunked prefill: every step computes some tokens of some prompts, whatever images are ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from common.engine.sampler import SampledToken, sample
from common.engine.sequence import Sequence
from common.engine.stopping import failure
from common.worker.loop import StepLoop
from common.worker.parts import Parts
from services.prefill.job import Job
from services.prefill.rates import Rates
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

    def __init__(self, parts: Parts, settings: PrefillSettings, thread: ThreadPoolExecutor) -> None:
        self._parts = parts
        self.scheduler = PrefillScheduler(parts.blocks, settings.step_tokens, settings.max_waiting)
        self.rates = Rates(settings.pull)
        self._loop = StepLoop(self._plan, self._execute, self._apply, self._fail, thread)
        parts.blocks.cache.on_free(self._loop.wake)

    def start(self) -> None:
        """Start stepping."""
        self._events = asyncio.get_running_loop()
        self._loop.start()

    def alive(self, stall_s: float) -> bool:
        """See `StepLoop.alive`."""
        return self._loop.alive(stall_s)

    async def close(self) -> None:
        """Stop; callers have left before."""
        await self._loop.close()

    def submit(self, job: Job) -> None:
        """Queue a prompt; `job.first` gets its first token. Raises what `PrefillScheduler.submit` raises."""
        self.scheduler.submit(job)
        self._loop.wake()

    async def keep_lease(self, job: Job, lease_s: float) -> None:
        """Prolong decode's lease for as long as this runs and steps do not hang; 0 is a lease that nothing prolongs."""
        while lease_s:
            await asyncio.sleep(lease_s / 3)
            if self.alive(self._parts.settings.engine_stall_s):
                job.delivery.renew()

    def image_ready(self, job: Job, index: int, tensors: Mapping[str, Tensor]) -> None:
        """The embedding of image `index` has arrived: more of the prompt can be computed."""
        job.images[index] = tensors
        self._loop.wake()

    def pulled(self, job: Job) -> None:
        """Fetching is over, whatever came of it: the rest can be computed."""
        job.pulling = False
        job.delivery.ready(job.sequence.num_computed)
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

        ends = [(job, job.sequence.num_computed + count) for job, count in step]

        def layer_written(layer: int) -> None:
            self._events.call_soon_threadsafe(_push_layer, ends, layer)

        result = self._parts.runner.execute([(job.sequence, count) for job, count in step], image, layer_written)
        sampled = sample(result.logits, result.sequences)
        return StepOutcome(dict(zip(result.sequences, sampled, strict=True)), begin, time.monotonic_ns())

    def _apply(self, step: Step, outcome: StepOutcome) -> None:
        self.rates.compute.note(sum(count for _, count in step), (outcome.end_ns - outcome.begin_ns) / 1e9)
        for job, count in step:
            job.account(outcome.begin_ns, outcome.end_ns, count)
            self._settle(job, count, outcome.tokens.get(job.sequence))
        self.scheduler.end_step()

    def _settle(self, job: Job, count: int, token: SampledToken | None) -> None:
        if token is not None and (error := failure(job.sequence, token)):
            # Nobody else shall find KV that may be broken.
            job.fail(error)
            return
        self._parts.blocks.publish(job.sequence, since=job.sequence.num_computed - count)
        if token is not None and not job.first.done():
            job.first.set_result(token)

    def _fail(self, step: Step, error: TriptychError) -> None:
        self.scheduler.end_step()
        for job, _ in step:
            job.fail(error)
            job.delivery.abort()
            self.scheduler.release(job)


def _push_layer(ends: list[tuple[Job, int]], layer: int) -> None:
    for job, end in ends:
        job.delivery.layer_ready(layer, end)
