"""Answers in OpenAI's form: whole, or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from services.router.answers.reader import merge
from services.router.answers.token_bytes import token_bytes, token_text
from services.router.prompts.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished, ToolCallDelta
from triptych.v1.types_pb2 import FinishReason, GeneratedToken, TokenChoice, Usage

Json = dict[str, Any]
REASONS = {
    FinishReason.FINISH_REASON_STOP: "stop",
    FinishReason.FINISH_REASON_LENGTH: "length",
    FinishReason.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
LEAST_LOGPROB = -9999.0


class ChatForm:
    """Formats the answers to one chat completion request."""

    def __init__(self, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._head: Json = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, deltas: Sequence[GenerateDelta], finishes: Sequence[GenerateFinished]) -> Json:
        """All answers as one object."""
        choices = [self._whole(finish, of_choice(deltas, finish)) for finish in in_order(finishes)]
        head = self._head | {"object": "chat.completion"}
        return head | {"choices": choices, "usage": usage_of(finishes[-1].usage)}

    def opening(self, index: int) -> Json:
        """The first chunk of an answer."""
        return self._chunk([{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def delta(self, delta: GenerateDelta) -> Json | None:
        """A chunk, or None when there is nothing to say."""
        news: Json = {"content": delta.text} if delta.text else {}
        if delta.tool_calls:
            news["tool_calls"] = [_call_news(call) for call in delta.tool_calls]
        if not news and not (self._logprobs and delta.tokens):
            return None
        return self._chunk([self._choice(delta.index, None, delta.tokens) | {"delta": news}])

    def closing(self, finished: GenerateFinished) -> Json:
        """The chunk that says why an answer ended."""
        return self._chunk([{"index": finished.index, "delta": {}, "finish_reason": REASONS[finished.reason]}])

    def account(self, finished: GenerateFinished) -> Json:
        """The chunk with the usage."""
        return self._chunk([]) | {"usage": usage_of(finished.usage)}

    def _whole(self, finished: GenerateFinished, deltas: Sequence[GenerateDelta]) -> Json:
        text = "".join(delta.text for delta in deltas)
        calls = merge(call for delta in deltas for call in delta.tool_calls)
        message: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        tokens = [token for delta in deltas for token in delta.tokens]
        return self._choice(finished.index, REASONS[finished.reason], tokens) | {"message": message}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head | {"object": "chat.completion.chunk", "choices": choices}

    def _choice(self, index: int, reason: str | None, tokens: Iterable[GeneratedToken]) -> Json:
        entries = [self._entry(token) for token in tokens] if self._logprobs else None
        logprobs = None if entries is None else {"content": entries, "refusal": None}
        return {"index": index, "logprobs": logprobs, "finish_reason": reason}

    def _entry(self, token: GeneratedToken) -> Json:
        return self._alternative(token) | {"top_logprobs": [self._alternative(choice) for choice in token.top]}

    def _alternative(self, choice: GeneratedToken | TokenChoice) -> Json:
        text, data = token_text(self._tokenizer, choice.token_id), token_bytes(self._tokenizer, choice.token_id)
        return {"token": text, "logprob": finite(choice.logprob), "bytes": list(data)}


def of_choice(deltas: Iterable[GenerateDelta], finished: GenerateFinished) -> list[GenerateDelta]:
    """The deltas of one answer."""
    return [delta for delta in deltas if delta.index == finished.index]


def in_order(finishes: Iterable[GenerateFinished]) -> list[GenerateFinished]:
    """The answers by index, in whatever order they ended."""
    return sorted(finishes, key=lambda finish: finish.index)


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry: it has no infinity."""
    return max(logprob, LEAST_LOGPROB)


def _call(call: ToolCallDelta) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_news(call: ToolCallDelta) -> Json:
    if call.id:
        return {"index": call.index, **_call(call)}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def usage_of(usage: Usage) -> Json:
    """The account under OpenAI's names, and all of it under `triptych`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "triptych": _plain(usage),
    }


def _plain(message: ProtoMessage) -> Json:
    """Fields by name, unset messages and empty lists left out. Protobuf's own JSON would write numbers as strings."""
    fields = [field for field in message.DESCRIPTOR.fields if not field.has_presence or message.HasField(field.name)]
    given = {field.name: (field, getattr(message, field.name)) for field in fields}
    return {
        name: [_value(field, item) for item in value] if field.is_repeated else _value(field, value)
        for name, (field, value) in given.items()
        if not field.is_repeated or value
    }


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, ProtoMessage):
        return _plain(value)
    if field.enum_type is None:
        return value
    names = field.enum_type.values_by_number
    return names[value].name.removeprefix(names[0].name.removesuffix("UNSPECIFIED")).lower()
