"""OpenAI's requests in the form that all interfaces share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.router.http.conversation import to_choice, to_messages, to_tools
from services.router.http.formats import grammar_of
from services.router.http.schema import AnswerRequest, ChatRequest, CompletionRequest, TokenizeRequest
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import GenerateRequest, RawPrompt
from triptych.v1.types_pb2 import SamplingParams

# What OpenAI's older interface does when a request does not say.
COMPLETION_MAX_TOKENS = 16
_SAME_NAME = (
    "max_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "stop_token_ids",
    "ignore_eos",
)
_UNSIGNED = {"seed": 2**64, "top_k": 2**32}


def check_chat(request: ChatRequest) -> None:
    """InvalidArgumentError for what others offer and we do not, rather than an answer that lacks it."""
    _check_answer(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidArgumentError("top_logprobs needs logprobs to be true", param="top_logprobs")


def check_completion(request: CompletionRequest) -> None:
    """See `check_chat`."""
    _check_answer(request)
    for name in ("echo", "suffix"):
        if getattr(request, name):
            raise InvalidArgumentError(f"{name} is not supported", param=name)
    if request.best_of not in (None, request.n or 1):
        raise InvalidArgumentError("best_of: only as many answers as n asks for are made", param="best_of")


def chat_to_generate(request: ChatRequest, digests: Sequence[str], request_id: str) -> GenerateRequest:
    """A conversation, its pictures named by `digests`, one an occurrence."""
    generate = _to_generate(request, request_id)
    generate.messages.extend(to_messages(request.messages, digests))
    generate.tools.extend(to_tools(request.tools))
    generate.tool_choice.CopyFrom(to_choice(request))
    if request.max_completion_tokens is not None:
        generate.sampling.max_tokens = request.max_completion_tokens
    if request.logprobs:
        generate.sampling.top_logprobs = request.top_logprobs or 0
    if wanted := grammar_of(request.response_format):
        generate.sampling.grammar.CopyFrom(wanted)
    return generate


def completion_to_generate(request: CompletionRequest, request_id: str) -> GenerateRequest:
    """A raw prompt."""
    generate = _to_generate(request, request_id)
    generate.prompt.CopyFrom(_raw_prompt(request.prompt))
    if request.max_tokens is None:
        generate.sampling.max_tokens = COMPLETION_MAX_TOKENS
    if request.logprobs is not None:
        generate.sampling.top_logprobs = request.logprobs
    return generate


def tokenize_to_generate(request: TokenizeRequest, digests: Sequence[str]) -> GenerateRequest:
    """What is to be tokenized. InvalidArgumentError unless it is either a text or a conversation."""
    if (request.prompt is None) == (not request.messages):
        raise InvalidArgumentError("either a prompt or messages are needed", param="prompt")
    return GenerateRequest(
        model=request.model,
        messages=to_messages(request.messages, digests),
        tools=to_tools(request.tools),
        prompt=None if request.prompt is None else RawPrompt(text=request.prompt),
        cache_salt=request.cache_salt,
    )


def _check_answer(request: AnswerRequest) -> None:
    if request.prompt_logprobs is not None:
        raise InvalidArgumentError("log-probabilities of prompts are not supported", param="prompt_logprobs")


def _to_generate(request: AnswerRequest, request_id: str) -> GenerateRequest:
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    return GenerateRequest(
        model=request.model,
        sampling=_sampling(request),
        stop=stop or [],
        n=request.n or 1,
        request_id=request_id,
        cache_salt=request.cache_salt,
        session_id=request.session_id or "",
        context_policy=request.context_policy or "",
        prompt_map=bool(request.prompt_map),
        priority=request.priority or 0,
    )


def _raw_prompt(prompt: Any) -> RawPrompt:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise InvalidArgumentError(f"a request has one prompt, this one has {len(prompt)}", param="prompt")
        prompt = prompt[0]
    return RawPrompt(text=prompt) if isinstance(prompt, str) else RawPrompt(token_ids=prompt)


def _sampling(request: AnswerRequest) -> SamplingParams:
    given = {name: getattr(request, name) for name in (*_SAME_NAME, *_UNSIGNED)}
    for name, end in _UNSIGNED.items():
        if given[name] is not None and not 0 <= given[name] < end:
            raise InvalidArgumentError(f"{name} must be at least 0 and below {end}", param=name)
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})
