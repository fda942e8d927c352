"""Drives jobs through encode, prefill and decode."""

from __future__ import annotations

import logging

from common.rpc.channels import Channels
from services.router.account import Account
from services.router.attempt import Attempt
from services.router.encoding import Encoding
from services.router.job import Job
from services.router.ledger import Ledger
from services.router.pixels import Pixels
from services.router.placement import Placement
from triptych.errors import UnavailableError
from triptych.v1.decode_pb2 import DecodeResponse

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 2


class Pipeline:
    """What all runs share."""

    def __init__(self, placement: Placement, ledger: Ledger, channels: Channels, pixels: Pixels) -> None:
        self._placement, self._ledger, self._channels, self._pixels = placement, ledger, channels, pixels

    def attempt(self, job: Job, account: Account, avoid: set[str]) -> Attempt:
        """A try on the workers that suit best now."""
        route = self._placement.route(job.prompt_tokens, job.sampling.max_tokens, avoid)
        encoding = Encoding(job, avoid, self._placement, self._ledger, self._channels, account, self._pixels)
        return Attempt(job, route, encoding, self._channels, self._ledger, account)


class Run:
    """A job on its way. Until its first token it is moved to other workers, once, when one is unavailable."""

    def __init__(self, pipeline: Pipeline, job: Job, account: Account) -> None:
        self._pipeline, self._job, self._account = pipeline, job, account
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._begun = False
        self._avoid: set[str] = set()

    async def start(self) -> Attempt:
        """Return once decode has reserved room for the job."""
        while self._attempt is None:
            self._attempt = attempt = self._pipeline.attempt(self._job, self._account, self._avoid)
            self._attempts += 1
            try:
                await attempt.open()
            except UnavailableError as error:
                await self._move(error)
        return self._attempt

    async def read(self) -> DecodeResponse:
        """The next tokens, or the finish."""
        while True:
            attempt = await self.start()
            try:
                event = await attempt.read()
            except UnavailableError as error:
                await self._move(error)
                continue
            self._begun = True
            return event

    async def settle(self) -> None:
        """After the last token wanted: complete the account."""
        if self._attempt is not None:
            await self._attempt.settle()

    async def close(self) -> None:
        """End all calls; twice is harmless."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            await attempt.close()

    async def _move(self, error: UnavailableError) -> None:
        used = self._attempt.instance_ids if self._attempt is not None else set()
        await self.close()
        if self._begun or self._attempts >= MAX_ATTEMPTS:
            raise error
        # Which of them failed is not certain: a dead prefill worker can look like a failing decode worker.
        self._avoid |= used
        log.warning("request %s moves to other workers: %s", self._job.request_id, error.message)
