"""Continuous batching: every step computes one token for each running request; requests join and leave in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from common.engine.sampler import SampledToken, sample
from common.engine.sequence import Sequence
from common.engine.stopping import failure, finish_reason
from common.kv.reservations import Reservations
from common.worker.loop import StepLoop
from common.worker.parts import Parts
from common.worker.prompts import from_generated, to_sequence
from services.decode.intake import Intake
from services.decode.job import Job
from services.decode.parking import Parking
from services.decode.scheduler import DecodeScheduler
from services.decode.settings import DecodeSettings
from services.decode.step import Step
from triptych.errors import ContextLengthError, InternalError, TriptychError, UnavailableError
from triptych.v1 import decode_pb2, types_pb2


class DecodeEngine:
    """Owns the jobs of one decode worker. All methods run on the event loop."""

    def __init__(
        self, parts: Parts, settings: DecodeSettings, thread: ThreadPoolExecutor, computes_prompts: bool
    ) -> None:
        self._parts = parts
        self.scheduler = DecodeScheduler(
            parts.blocks,
            Parking(parts.cache, int(settings.parking)),
            settings.max_waiting,
            settings.max_running,
            settings.watermark,
            # Whoever computes the prompt in place needs its last token's logits, so that token is not reused.
            unused=1 if computes_prompts else 0,
        )
        reservations = Reservations(parts.model.num_layers, settings.reservation_ttl_s)
        self.intake = Intake(self.scheduler, reservations, parts.blocks.block_size)
        self._loop = StepLoop(self._plan, self._execute, self._apply, self._fail, thread)
        parts.blocks.cache.on_free(self._loop.wake)
        self._reaper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start stepping and expiring."""
        self._loop.start()
        self._reaper = asyncio.create_task(self._expire_forever(), name="reservation-reaper")

    def alive(self, stall_s: float) -> bool:
        """See `StepLoop.alive`."""
        return self._loop.alive(stall_s)

    async def close(self) -> None:
        """Stop; callers have left before."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await self._loop.close()

    def submit(self, request: decode_pb2.DecodeRequest) -> Job:
        """Queue a request. Raises InvalidArgumentError, ContextLengthError or ResourceExhaustedError."""
        parts = self._parts
        sequence = to_sequence(request.request_id, request.prompt, request.sampling, parts)
        job = Job(sequence)
        if reason := finish_reason(sequence, parts.model.eos_token_ids, parts.context_length):
            # Its answer was complete when its worker was lost; only the finish is missing.
            job.emit(reason)
            return job
        if job.most_tokens > parts.context_length:
            raise ContextLengthError(
                f"prompt and max_tokens make {job.most_tokens} tokens, the context is {parts.context_length}",
                param="max_tokens",
            )
        self.intake.submit(job)
        return job

    def deliver(self, reservation_id: str, first: types_pb2.GeneratedToken) -> None:
        """The prompt's KV is complete: the job runs, beginning with prefill's token.

        FailedPreconditionError when the request was given up meanwhile.
        """
        job = self.intake.take(reservation_id)
        job.published, job.sequence.num_computed = job.sequence.num_computed, job.sequence.num_given
        self._publish(job)
        self.scheduler.activate(job)
        self._advance(job, from_generated(first))
        self._loop.wake()

    def release(self, job: Job) -> None:
        """The caller is gone or served: free everything; idempotent."""
        self.intake.close(job)
        job.released.set()
        self.scheduler.release(job)
        self._loop.wake()

    def _plan(self) -> Step | None:
        self.intake.admit()
        return self.scheduler.begin_step() or None

    def _execute(self, step: Step) -> list[SampledToken]:
        for copy in step.copies:
            copy()
        if not step.jobs:
            return []
        result = self._parts.runner.execute([(job.sequence, 1) for job in step.jobs], _no_images)
        return sample(result.logits, result.sequences)

    def _apply(self, step: Step, tokens: list[SampledToken]) -> None:
        self.scheduler.end_step()
        for job, token in zip(step.jobs, tokens, strict=True):
            if self.scheduler.is_running(job):
                self._advance(job, token)
        self.intake.admit()

    def _fail(self, step: Step, error: TriptychError) -> None:
        self.scheduler.end_step()
        for job in step.members:
            self._end(job, error)

    def _advance(self, job: Job, token: SampledToken) -> None:
        if error := failure(job.sequence, token):
            self._end(job, error)
            return
        # Only now: broken logits mean broken KV, which nobody else shall find.
        self._publish(job)
        job.sequence.append(token.token_id)
        job.emit(token)
        reason = finish_reason(job.sequence, self._parts.model.eos_token_ids, self._parts.context_length)
        if reason is not None:
            job.emit(reason)
            self.release(job)

    def _publish(self, job: Job) -> None:
        self._parts.blocks.publish(job.sequence, since=job.published)
        job.published = job.sequence.num_computed

    def _end(self, job: Job, error: TriptychError) -> None:
        job.emit(error)
        self.release(job)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for job in self.intake.expired():
                self._end(job, UnavailableError("the prompt's KV did not arrive in time"))


def _no_images(sequence: Sequence, index: int) -> Mapping[str, Tensor]:
    raise InternalError(f"a decode step of {sequence.request_id} asked for image {index}")
