"""What a request asks of its answers, checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.grammar.language import MAX_CHARACTERS
from services.router.answers.reader import PlainReader, Reader
from services.router.answers.stops import check_stops
from services.router.answers.tool_calls import ToolCallReader
from services.router.caller import Caller
from services.router.grammars import Grammars
from services.router.job import Job
from services.router.prompts.tools import answer_grammar, check_tools, offered
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import SamplingParams

MAX_CHOICES = 16
MAX_NAME = 256
"""Characters of the names that callers give to requests and sessions: some are remembered."""


@dataclass(frozen=True)
class Plan:
    """`request` is the client's, with the grammar that its choice of tools implies."""

    request: GenerateRequest
    stops: tuple[str, ...]
    choices: int

    def reader(self) -> Reader:
        """A fresh reader for one answer."""
        return ToolCallReader(self.request.tool_choice.single) if offered(self.request) else PlainReader()

    def jobs(self, job: Job) -> Sequence[Job]:
        """One job an answer. The first is what the request alone would be; the others differ in their random keys."""
        return [_numbered(job, index) for index in range(self.choices)]


class Planner:
    """Makes plans. `tools`: the model's chat template knows tools."""

    def __init__(self, grammars: Grammars, tools: bool) -> None:
        self._grammars, self._tools = grammars, tools

    async def plan(self, request: GenerateRequest, caller: Caller) -> Plan:
        """InvalidArgumentError, naming the field, for what cannot be answered so."""
        stops = check_stops(request.stop)
        if request.n > MAX_CHOICES:
            raise InvalidArgumentError(f"n: at most {MAX_CHOICES} answers are possible, not {request.n}", param="n")
        _check_names(request)
        _check_prompt(request)
        await check_tools(request, self._tools, self._grammars, caller)
        return Plan(await self._with_grammar(request, caller), stops, max(1, request.n))

    async def _with_grammar(self, request: GenerateRequest, caller: Caller) -> GenerateRequest:
        if request.sampling.HasField("grammar"):
            await self._grammars.check(request.sampling.grammar, caller)
        grammar = answer_grammar(request)
        if grammar is None:
            return request
        if request.sampling.ignore_eos:
            raise InvalidArgumentError(
                "ignore_eos: an answer with a grammar ends where it is complete", param="ignore_eos"
            )
        if len(grammar.lark) > MAX_CHARACTERS:
            raise InvalidArgumentError(f"the schemas have more than {MAX_CHARACTERS} characters", param="tools")
        changed = GenerateRequest()
        changed.CopyFrom(request)
        changed.sampling.grammar.CopyFrom(grammar)
        return changed


def _check_names(request: GenerateRequest) -> None:
    for field, name in (("request_id", request.request_id), ("session_id", request.session_id)):
        if len(name) > MAX_NAME:
            raise InvalidArgumentError(f"{field}: at most {MAX_NAME} characters, not {len(name)}", param=field)


def _check_prompt(request: GenerateRequest) -> None:
    if not request.HasField("prompt"):
        return
    if request.messages or request.tools:
        raise InvalidArgumentError("a raw prompt has neither messages nor tools", param="prompt")
    if request.prompt.text and request.prompt.token_ids:
        raise InvalidArgumentError("a raw prompt is a text or token ids, not both", param="prompt")


def _numbered(job: Job, index: int) -> Job:
    sampling = SamplingParams()
    sampling.CopyFrom(job.sampling)
    sampling.choice_index = index
    return replace(job, request_id=f"{job.request_id}-{index}" if index else job.request_id, sampling=sampling)
