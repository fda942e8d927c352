"""Fills in and checks the sampling settings of a request."""

from __future__ import annotations

import secrets

from common.engine import sampling as engine
from services.router.defaults import AnswerDefaults
from triptych.errors import ContextLengthError, InvalidArgumentError
from triptych.v1.types_pb2 import SamplingParams

_FILTERS_AND_PENALTIES = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def resolve_sampling(asked: SamplingParams, prompt_tokens: int, defaults: AnswerDefaults) -> SamplingParams:
    """A complete copy of `asked`; InvalidArgumentError for bad values, ContextLengthError when it cannot fit."""
    params = SamplingParams()
    params.CopyFrom(asked)
    room = defaults.context_length - prompt_tokens
    if not params.HasField("max_tokens"):
        params.max_tokens = max(1, min(room, defaults.max_tokens))
    if not params.HasField("temperature"):
        params.temperature = defaults.temperature
    if not params.HasField("seed"):
        params.seed = secrets.randbits(64)
    _check_values(params)
    _check_room(params.max_tokens, prompt_tokens, defaults.context_length)
    return params


def check_prompt_length(prompt_tokens: int, context_length: int) -> None:
    """ContextLengthError when no room is left for an answer."""
    if prompt_tokens >= context_length:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens; the context holds {context_length}, the answer included",
            param="messages",
        )


def _check_room(max_tokens: int, prompt_tokens: int, context_length: int) -> None:
    check_prompt_length(prompt_tokens, context_length)
    if prompt_tokens + max_tokens > context_length:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, together "
            f"{prompt_tokens + max_tokens}; the context holds {context_length}",
            param="max_tokens",
        )


def _check_values(params: SamplingParams) -> None:
    """The engine's own bounds, so that a bad value is refused before any work is done."""
    if params.top_logprobs > engine.MAX_LOGPROBS:
        limit = f"between 0 and {engine.MAX_LOGPROBS}, not {params.top_logprobs}"
        raise InvalidArgumentError(f"top_logprobs must be {limit}", param="top_logprobs")
    given = {field.name: value for field, value in params.ListFields() if field.name in _FILTERS_AND_PENALTIES}
    engine.SamplingParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        seed=params.seed,
        stop_token_ids=frozenset(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        logprobs=params.top_logprobs if params.HasField("top_logprobs") else None,
        **given,
    )
