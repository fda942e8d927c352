"""OpenAI's request in the form that all interfaces share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.router.http.schema import ChatMessage, ChatRequest, ImagePart, TextPart
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message, SamplingParams

_SAME_NAME = (
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


def check_supported(request: ChatRequest) -> None:
    """InvalidArgumentError for what OpenAI offers and we do not, rather than an answer that ignores it."""
    if request.n not in (None, 1):
        raise InvalidArgumentError("n: only one answer per request is supported", param="n")
    if (request.response_format or {}).get("type", "text") != "text":
        raise InvalidArgumentError("response_format: only text is supported", param="response_format")
    if request.tool_choice not in (None, "none", "auto"):
        raise InvalidArgumentError("tool_choice: tool calls are not supported", param="tool_choice")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidArgumentError("top_logprobs needs logprobs to be true", param="top_logprobs")


def to_generate(request: ChatRequest, digests: Sequence[str], request_id: str) -> GenerateRequest:
    """The request with its pictures named by `digests`, one an occurrence."""
    names = iter(digests)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    return GenerateRequest(
        model=request.model,
        messages=[_message(message, names) for message in request.messages],
        sampling=_sampling(request),
        stop=stop or [],
        request_id=request_id,
        cache_salt=request.cache_salt,
    )


def _message(message: ChatMessage, names: Iterator[str]) -> Message:
    # OpenAI renamed the system role; templates of open models know the old name.
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=[_part(part, names) for part in message.content])


def _part(part: TextPart | ImagePart, names: Iterator[str]) -> ContentPart:
    if part.type == "text":
        return ContentPart(text=part.text)
    return ContentPart(image=ImageRef(digest=next(names), detail=part.image_url.detail or ""))


def _sampling(request: ChatRequest) -> SamplingParams:
    given = {name: getattr(request, name) for name in (*_SAME_NAME, *_UNSIGNED)}
    for name, end in _UNSIGNED.items():
        if given[name] is not None and not 0 <= given[name] < end:
            raise InvalidArgumentError(f"{name} must be at least 0 and below {end}", param=name)
    given["max_tokens"] = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    given["top_logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})
