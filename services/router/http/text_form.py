"""Answers in the older form, that of /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence

from services.router.answers.token_bytes import token_text
from services.router.http.completion import REASONS, Json, finite, in_order, of_choice, usage_of
from services.router.prompts.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished
from triptych.v1.types_pb2 import GeneratedToken, TokenChoice


class TextForm:
    """Formats the answers to one completion request."""

    def __init__(self, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._offsets: Counter[int] = Counter()
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion"}
        self._head: Json = head | {"created": int(time.time()), "model": model}

    def whole(self, deltas: Sequence[GenerateDelta], finishes: Sequence[GenerateFinished]) -> Json:
        """All answers as one object."""
        choices = [self._whole(finish, of_choice(deltas, finish)) for finish in in_order(finishes)]
        return self._head | {"choices": choices, "usage": usage_of(finishes[-1].usage)}

    def opening(self, index: int) -> None:
        """None: the form has no first chunk."""

    def delta(self, delta: GenerateDelta) -> Json | None:
        """A chunk, or None when there is nothing to say."""
        if not delta.text and not (self._logprobs and delta.tokens):
            return None
        return self._head | {"choices": [self._choice(delta.index, delta.text, None, delta.tokens)]}

    def closing(self, finished: GenerateFinished) -> Json:
        """The chunk that says why an answer ended."""
        return self._head | {"choices": [self._choice(finished.index, "", REASONS[finished.reason], ())]}

    def account(self, finished: GenerateFinished) -> Json:
        """The chunk with the usage."""
        return self._head | {"choices": [], "usage": usage_of(finished.usage)}

    def _whole(self, finished: GenerateFinished, deltas: Sequence[GenerateDelta]) -> Json:
        tokens = [token for delta in deltas for token in delta.tokens]
        text = "".join(delta.text for delta in deltas)
        return self._choice(finished.index, text, REASONS[finished.reason], tokens)

    def _choice(self, index: int, text: str, reason: str | None, tokens: Iterable[GeneratedToken]) -> Json:
        logprobs = self._entries(index, list(tokens)) if self._logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _entries(self, index: int, tokens: Sequence[GeneratedToken]) -> Json:
        texts = [self._text(token) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        tops = [{self._text(choice): finite(choice.logprob) for choice in token.top} for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _text(self, choice: GeneratedToken | TokenChoice) -> str:
        return token_text(self._tokenizer, choice.token_id)
