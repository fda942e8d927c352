"""Drives jobs through the queue, encode, prefill and decode, and on to other workers when some are lost."""

from __future__ import annotations

from common.rpc.channels import Channels
from common.tracing import fail, span
from services.router.figures.account import Account
from services.router.figures.metrics import Metrics
from services.router.job import Job
from services.router.placing.ledger import Ledger
from services.router.placing.placement import Placement
from services.router.running.attempt import Attempt
from services.router.running.calls import Trouble
from services.router.running.encoding import Encoding
from services.router.running.failover import Failover, can_move
from services.router.running.pixels import Pixels
from services.router.waiting.turnstile import Slot, Turnstile
from triptych.errors import DeadlineExceededError, TriptychError
from triptych.v1.decode_pb2 import DecodeResponse


class Pipeline:
    """What all runs share."""

    def __init__(
        self,
        placement: Placement,
        ledger: Ledger,
        channels: Channels,
        pixels: Pixels,
        turnstile: Turnstile,
        failover: Failover,
        metrics: Metrics,
    ) -> None:
        self._placement, self._ledger, self._channels, self._pixels = placement, ledger, channels, pixels
        self.turnstile, self.failover, self.metrics = turnstile, failover, metrics

    async def enter(self, job: Job) -> Slot:
        """A place among the running; refuses at once what can never run, and what must not."""
        self.failover.begin(job)
        self._placement.check(job.work())
        with span("queue"):
            return await self.turnstile.enter(job)

    def attempt(self, job: Job, account: Account, avoid: set[str]) -> Attempt:
        """A try on the workers that suit best now."""
        route, trouble = self._placement.route(job.work(), avoid), Trouble()
        self.metrics.matched(job.prompt_tokens - route.uncached_tokens)
        encoding = Encoding(job, avoid, self._placement, self._ledger, self._channels, account, self._pixels, trouble)
        return Attempt(job, route, encoding, self._channels, self._ledger, account, trouble)


class Run:
    """A job on its way. When its workers are lost it goes on elsewhere, behind the tokens that were read already."""

    def __init__(self, pipeline: Pipeline, job: Job, account: Account) -> None:
        self._pipeline, self._job, self._account = pipeline, job, account
        self._slot: Slot | None = None
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._emitted: list[int] = []
        self._avoid: set[str] = set()

    async def start(self) -> Attempt:
        """Return once decode has reserved room for the job."""
        if self._slot is None:
            self._slot = await self._pipeline.enter(self._job)
        while self._attempt is None:
            job = self._job.resumed(self._emitted, self._attempts)
            self._attempt = attempt = self._pipeline.attempt(job, self._account, self._avoid)
            self._attempts += 1
            try:
                await attempt.open()
            except TriptychError as error:
                await self._move(error)
        return self._attempt

    async def read(self) -> DecodeResponse:
        """The next tokens, or the finish."""
        while True:
            attempt = await self.start()
            try:
                event = await attempt.read()
            except TriptychError as error:
                await self._move(error)
                continue
            self._emitted += [token.token_id for token in event.tokens.tokens]
            return event

    async def settle(self) -> None:
        """After the last token wanted, which need not be the last there is: the request is answered, and its account
        is completed.
        """
        self._pipeline.failover.finished(self._job)
        if self._attempts > 1:
            self._pipeline.metrics.rescued()
        if self._attempt is not None:
            await self._attempt.settle()

    async def close(self) -> None:
        """End all calls; twice is harmless."""
        try:
            await self._drop()
        finally:
            if self._slot is not None:
                self._slot.release()

    async def _drop(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            await attempt.close()

    async def _move(self, error: TriptychError) -> None:
        attempt = self._attempt
        if attempt is not None:
            fail(attempt.span, error)
        await self._drop()
        if attempt is None or not can_move(error):
            raise error
        if self._job.remaining_s() <= 0:
            raise DeadlineExceededError("the request took longer than its deadline allows") from error
        self._pipeline.failover.judge(self._job, attempt.failure(error), self._attempts)
        self._avoid |= attempt.suspects
