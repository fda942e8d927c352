"""What experiments talk to: one call at a time, timed, with everything that the endpoint reports about it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from triptych.answers import Answer, Delta, Event
from triptych.client import Client
from triptych.lab.oracle import Picture, Prompt
from triptych.lab.record import Measured
from triptych.lab.talks import Talk
from triptych.v1.types_pb2 import DivergenceKind

MAX_TOKENS = 24


@dataclass(frozen=True)
class Reply:
    """What came back; `answer_ids` and `prompt` only where the endpoint shows its tokens."""

    measured: Measured
    answer_ids: tuple[int, ...] = ()
    prompt: Prompt | None = None


class Endpoint(Protocol):
    """Answers greedily. Calls of one `salt` share caches, those of two never do; so a new salt is an empty cache."""

    def ask(self, talk: Talk, salt: str, session: str) -> Reply:
        """One call; raises the SDK's errors."""

    def block_size(self) -> int | None:
        """Tokens of a KV block, where predictions are possible."""

    def close(self) -> None:
        """End the connection."""


class TriptychEndpoint:
    """A cluster, over gRPC. Takes the client over, and closes it."""

    def __init__(self, client: Client, max_tokens: int = MAX_TOKENS) -> None:
        self._client, self._max_tokens = client, max_tokens
        self._block_size: int | None = None

    def ask(self, talk: Talk, salt: str, session: str) -> Reply:
        """See `Endpoint`."""
        options = {"temperature": 0.0, "max_tokens": self._max_tokens, "cache_salt": salt, "session_id": session}
        stream = self._client.generate(list(talk), **options)  # type: ignore[arg-type]
        began = time.perf_counter()
        first = None
        for event in stream:
            first = first or _token_time(event)
        ended = time.perf_counter()
        answer = stream.answer()
        measured = measured_of(answer, ((first or ended) - began) * 1e3, (ended - began) * 1e3)
        return Reply(measured, tuple(token.token_id for token in answer.tokens), self._prompt(talk, salt))

    def block_size(self) -> int | None:
        """See `Endpoint`; known after the first call."""
        return self._block_size

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()

    def _prompt(self, talk: Talk, salt: str) -> Prompt:
        tokens = self._client.tokenize(list(talk), cache_salt=salt)
        self._block_size = tokens.block_size or None
        pictures = (Picture(span.offset, span.length, span.embedding_key) for span in tokens.images)
        return Prompt(tuple(tokens.token_ids), tuple(pictures))


def _token_time(event: Event) -> float | None:
    return time.perf_counter() if isinstance(event, Delta) else None


def measured_of(answer: Answer, first_ms: float, total_ms: float) -> Measured:
    """The account of an answer, with times taken at the caller's end in milliseconds."""
    usage = answer.usage
    known = usage.HasField("first_divergence")
    kind = DivergenceKind.Name(usage.first_divergence.kind).removeprefix("DIVERGENCE_KIND_").lower()
    return Measured(
        text=answer.text,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        read_tokens=usage.cache_read_tokens,
        creation_tokens=usage.cache_creation_tokens,
        uncached_tokens=usage.uncached_tokens,
        visual_tokens=usage.visual_tokens,
        images=usage.images,
        unique_images=usage.unique_images,
        embedding_hits=usage.embedding_hits,
        embedding_misses=usage.embedding_misses,
        divergence=kind if known else None,
        divergence_position=usage.first_divergence.token_position if known else None,
        first_token_ms=first_ms,
        total_ms=total_ms,
    )
