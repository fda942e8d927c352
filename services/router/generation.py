"""Answers requests: admission, the stages, and the text of the answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from common.tracing import Span, enter, held, span
from services.router.admission import Admission
from services.router.answers.answer import AnswerText
from services.router.answers.choice import Choice
from services.router.answers.choices import events_of, total_usage
from services.router.caller import Caller
from services.router.figures.account import Account
from services.router.figures.metrics import Metrics
from services.router.figures.prompt_map import prompt_map
from services.router.figures.prompt_metrics import PromptMetrics
from services.router.figures.traces import answered, asked
from services.router.history.history import History
from services.router.job import Job
from services.router.plan import Plan, Planner
from services.router.prompts.prompt import prompt_named
from services.router.prompts.tokenizer import Tokenizer
from services.router.running.pipeline import Pipeline, Run
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import (
    GenerateDelta,
    GenerateFinished,
    GenerateRequest,
    GenerateResponse,
    GenerateStarted,
    TokenizeResponse,
)
from triptych.v1.types_pb2 import FinishReason, Usage

log = logging.getLogger(__name__)
MAX_DETOKENIZED = 2**20


class Generator:
    """The answers to one request a call, for every interface alike."""

    def __init__(
        self,
        model: str,
        planner: Planner,
        admission: Admission,
        pipeline: Pipeline,
        tokenizer: Tokenizer,
        metrics: Metrics,
        history: History,
        prompts: PromptMetrics,
    ) -> None:
        self._model, self._planner, self._admission, self._pipeline = model, planner, admission, pipeline
        self._tokenizer, self._metrics, self._history, self._prompts = tokenizer, metrics, history, prompts

    async def generate(self, request: GenerateRequest, caller: Caller) -> AsyncGenerator[GenerateResponse]:
        """The events of all answers. Closing it, cancelling it or a failure ends every stage."""
        accepted_ns = time.monotonic_ns()
        with self._metrics.request(), held("request", model=self._model) as trace:
            enter(trace)
            with span("admission"), prompt_named(request):
                plan = await self._planner.plan(request, caller)
                job = await self._admission.admit(plan.request, caller)
            trace.set_attributes(asked(request, job))
            _reserve(caller, job, plan)
            answer_ids: list[int] = []
            choices = [self._choice(index, each, plan, accepted_ns) for index, each in enumerate(plan.jobs(job))]
            try:
                await choices[0].start()
                yield self._started(request, job)
                async with aclosing(_closed(choices)) as responses:
                    async for response in responses:
                        caller.allowance.generated(len(response.delta.tokens))
                        self._account(request, choices[0], response, answer_ids, trace)
                        yield response
            finally:
                for choice in choices:
                    await choice.close()

    async def tokenize(self, request: GenerateRequest, caller: Caller) -> TokenizeResponse:
        """The prompt as token ids, every picture expanded to its placeholders."""
        with prompt_named(request):
            plan = await self._planner.plan(request, caller)
            return await self._admission.tokenize(plan.request, caller)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens; InvalidArgumentError for more than any context holds."""
        if len(ids) > MAX_DETOKENIZED:
            raise InvalidArgumentError(f"at most {MAX_DETOKENIZED} tokens are possible", param="token_ids")
        return await asyncio.to_thread(self._tokenizer.decode, ids)

    def _account(
        self, request: GenerateRequest, first: Choice, response: GenerateResponse, answer_ids: list[int], trace: Span
    ) -> None:
        """Note the tokens of the first answer; with the last event of all, close the account."""
        if response.delta.index == 0:
            answer_ids += [token.token_id for token in response.delta.tokens]
        if response.finished.HasField("usage"):
            _map(request, response.finished.usage, first)
            self._finish(request, first.job, response.finished, answer_ids)
            trace.set_attributes(answered(response.finished))

    def _finish(self, request: GenerateRequest, job: Job, finished: GenerateFinished, answer_ids: list[int]) -> None:
        """Tell everybody who keeps accounts; the history goes first, since it adds where the prompt diverged."""
        self._history.finished(request, job, finished.usage, answer_ids)
        self._metrics.finished(finished.usage)
        self._prompts.finished(request, finished.usage)
        _log(job, request, finished)

    def _choice(self, index: int, job: Job, plan: Plan, accepted_ns: int) -> Choice:
        account = Account(time.monotonic_ns, accepted_ns, self._metrics.between_tokens)
        text = AnswerText(self._tokenizer.decode, plan.stops)
        return Choice(index, job, Run(self._pipeline, job, account), text, plan.reader(), account)

    def _started(self, request: GenerateRequest, job: Job) -> GenerateResponse:
        name = request.request_id or job.request_id
        started = GenerateStarted(request_id=name, model=self._model, prompt_tokens=job.prompt_tokens)
        return GenerateResponse(started=started)


async def _closed(choices: Sequence[Choice]) -> AsyncGenerator[GenerateResponse]:
    """The events of all choices; the last finish has the account of all."""
    left = len(choices)
    async with aclosing(events_of(choices)) as events:
        async for event in events:
            if isinstance(event, GenerateDelta):
                yield GenerateResponse(delta=event)
                continue
            left -= 1
            if left == 0:
                event.usage.CopyFrom(total_usage(choices))
            yield GenerateResponse(finished=event)


def _reserve(caller: Caller, job: Job, plan: Plan) -> None:
    images = [image.image_id for image in job.images]
    caller.allowance.reserve(job.prompt_tokens, job.sampling.max_tokens * plan.choices, images)


def _map(request: GenerateRequest, usage: Usage, first: Choice) -> None:
    """Add what the caller asked to see of its prompt."""
    if request.prompt_map:
        ids = {image.embedding_key: image.image_id for image in first.job.images}
        usage.prompt_map.extend(prompt_map(first.job.prompt, usage, ids, first.account.encoded_keys))


def _log(job: Job, request: GenerateRequest, finished: GenerateFinished) -> None:
    """One line an answer: figures and names, no content."""
    usage, reason = finished.usage, FinishReason.Name(finished.reason)
    log.info(
        "request %s (caller's %.64r, session %.64r): %d prompt and %d completion tokens, %d images, %s after %d ms",
        job.request_id,
        request.request_id,
        request.session_id,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.images,
        reason,
        usage.times.total_ns // 10**6,
    )
