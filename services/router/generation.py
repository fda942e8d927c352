"""Answers requests: admission, the stages, and the text of the answer."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator

from services.router.account import Account
from services.router.admission import Admission
from services.router.answer import AnswerText
from services.router.caller import Caller
from services.router.job import Job
from services.router.metrics import Metrics
from services.router.pipeline import Pipeline, Run
from services.router.stops import check_stops
from services.router.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished, GenerateRequest, GenerateResponse, GenerateStarted
from triptych.v1.types_pb2 import FinishReason

log = logging.getLogger(__name__)


class Answer:
    """One answer in the making."""

    def __init__(self, job: Job, run: Run, text: AnswerText, account: Account) -> None:
        self._job, self._run, self._text, self._account = job, run, text, account
        self._reason = FinishReason.FINISH_REASON_STOP

    async def deltas(self) -> AsyncIterator[GenerateDelta]:
        """The text, until the model or a stop string ends it."""
        while self._text.matched_stop is None:
            event = await self._run.read()
            if event.HasField("finished"):
                self._reason = event.finished.reason
                break
            tokens = event.tokens.tokens
            text, used = self._text.push([token.token_id for token in tokens])
            self._account.received(used)
            yield GenerateDelta(text=text, tokens=tokens[:used])
        if rest := self._text.finish():
            yield GenerateDelta(text=rest)

    async def finish(self) -> GenerateFinished:
        """Why it ended, and the account."""
        await self._run.settle()
        stop = self._text.matched_stop
        reason = FinishReason.FINISH_REASON_STOP if stop else self._reason
        return GenerateFinished(reason=reason, matched_stop=stop or "", usage=self._account.usage(self._job.prompt))


class Generator:
    """One answer a call, for every interface alike."""

    def __init__(
        self, model: str, admission: Admission, pipeline: Pipeline, tokenizer: Tokenizer, metrics: Metrics
    ) -> None:
        self._model, self._admission, self._pipeline = model, admission, pipeline
        self._tokenizer, self._metrics = tokenizer, metrics

    async def generate(self, request: GenerateRequest, caller: Caller) -> AsyncGenerator[GenerateResponse]:
        """The events of one answer. Closing it, cancelling it or a failure ends every stage."""
        account = Account(time.monotonic_ns)
        with self._metrics.request():
            text = AnswerText(self._tokenizer.decode, check_stops(request.stop))
            job = await self._admission.admit(request, caller)
            run = Run(self._pipeline, job, account)
            try:
                await run.start()
                yield self._started(request, job)
                answer = Answer(job, run, text, account)
                async for delta in answer.deltas():
                    yield GenerateResponse(delta=delta)
                finished = await answer.finish()
            finally:
                await run.close()
            self._metrics.finished(finished.usage)
            _log(job, request, finished)
            yield GenerateResponse(finished=finished)

    def _started(self, request: GenerateRequest, job: Job) -> GenerateResponse:
        name = request.request_id or job.request_id
        started = GenerateStarted(request_id=name, model=self._model, prompt_tokens=job.prompt_tokens)
        return GenerateResponse(started=started)


def _log(job: Job, request: GenerateRequest, finished: GenerateFinished) -> None:
    """One line an answer: figures and names, no content."""
    usage, reason = finished.usage, FinishReason.Name(finished.reason)
    log.info(
        "request %s (caller's %.64r): %d prompt and %d completion tokens, %d images, %s after %d ms",
        job.request_id,
        request.request_id,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.images,
        reason,
        usage.times.total_ns // 10**6,
    )
