"""Answers in OpenAI's form: whole, or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from services.router.token_bytes import token_bytes, token_text
from services.router.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished
from triptych.v1.types_pb2 import FinishReason, GeneratedToken, TokenChoice, Usage

Json = dict[str, Any]
_REASONS = {FinishReason.FINISH_REASON_STOP: "stop", FinishReason.FINISH_REASON_LENGTH: "length"}


class Completion:
    """Formats one answer."""

    def __init__(self, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._head: Json = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, deltas: Iterable[GenerateDelta], finished: GenerateFinished) -> Json:
        """The answer as one object."""
        deltas = list(deltas)
        message = {"role": "assistant", "content": "".join(delta.text for delta in deltas), "refusal": None}
        choice = self._choice(_REASONS[finished.reason], [token for delta in deltas for token in delta.tokens])
        head = self._head | {"object": "chat.completion"}
        return head | {"choices": [choice | {"message": message}], "usage": usage_of(finished.usage)}

    def opening(self) -> Json:
        """The first chunk."""
        return self._chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def delta(self, delta: GenerateDelta) -> Json | None:
        """A chunk, or None when there is nothing to say."""
        if not delta.text and not (self._logprobs and delta.tokens):
            return None
        return self._chunk([self._choice(None, delta.tokens) | {"delta": {"content": delta.text}}])

    def closing(self, finished: GenerateFinished) -> Json:
        """The chunk that says why the answer ended."""
        return self._chunk([{"index": 0, "delta": {}, "finish_reason": _REASONS[finished.reason]}])

    def account(self, finished: GenerateFinished) -> Json:
        """The chunk with the usage."""
        return self._chunk([]) | {"usage": usage_of(finished.usage)}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head | {"object": "chat.completion.chunk", "choices": choices}

    def _choice(self, reason: str | None, tokens: Iterable[GeneratedToken]) -> Json:
        entries = [self._entry(token) for token in tokens] if self._logprobs else None
        logprobs = None if entries is None else {"content": entries, "refusal": None}
        return {"index": 0, "logprobs": logprobs, "finish_reason": reason}

    def _entry(self, token: GeneratedToken) -> Json:
        return self._alternative(token) | {"top_logprobs": [self._alternative(choice) for choice in token.top]}

    def _alternative(self, choice: GeneratedToken | TokenChoice) -> Json:
        text, data = token_text(self._tokenizer, choice.token_id), token_bytes(self._tokenizer, choice.token_id)
        return {"token": text, "logprob": choice.logprob, "bytes": list(data)}


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
    """Fields by name. Protobuf's own JSON form would write 64-bit numbers as strings."""
    values = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    return {name: _plain(value) if isinstance(value, ProtoMessage) else value for name, value in values.items()}
