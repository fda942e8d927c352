"""What experiments talk to: one call at a time, timed, with everything that the endpoint reports about it."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from triptych.answers import Answer, Delta, Event
from triptych.client import Client
from triptych.errors import UnavailableError
from triptych.lab.oracle import Picture, Prompt
from triptych.lab.record import Measured
from triptych.lab.talks import Talk
from triptych.messages import Image, Message
from triptych.v1.types_pb2 import DivergenceKind

MS = 1e6
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


class OpenAIEndpoint:
    """Any server with OpenAI's chat API: vLLM, SGLang, a vendor. Reports what that server reports.

    `openai_client` is an `openai.OpenAI`. Servers that know no `cache_salt` get it in front of the system prompt.
    """

    def __init__(self, openai_client: Any, model: str, salted: bool, max_tokens: int = MAX_TOKENS) -> None:
        self._client, self._model, self._salted, self._max_tokens = openai_client, model, salted, max_tokens

    def ask(self, talk: Talk, salt: str, session: str) -> Reply:
        """See `Endpoint`."""
        import openai  # noqa: PLC0415 - an optional dependency

        began = time.perf_counter()
        try:
            return Reply(self._read(self._open(talk, salt), began))
        except openai.OpenAIError as error:
            raise UnavailableError(f"the endpoint failed: {error}") from error

    def block_size(self) -> int | None:
        """Unknown, so nothing is predicted."""
        return None

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()

    def _open(self, talk: Talk, salt: str) -> Any:
        extra = {"cache_salt": salt} if self._salted else {}
        return self._client.chat.completions.create(
            model=self._model,
            messages=[_to_openai(message) for message in (talk if self._salted else _marked(talk, salt))],
            temperature=0,
            max_tokens=self._max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
        )

    def _read(self, chunks: Any, began: float) -> Measured:
        text, first, usage = "", 0.0, None
        for chunk in chunks:
            usage = chunk.usage or usage
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                first = first or time.perf_counter()
                text += piece
        ended = time.perf_counter()
        return _reported(text, usage, ((first or ended) - began) * 1e3, (ended - began) * 1e3)


def _reported(text: str, usage: Any, first_ms: float, total_ms: float) -> Measured:
    if usage is None:
        return Measured(text, 0, 0, first_token_ms=first_ms, total_ms=total_ms)
    details = usage.prompt_tokens_details
    read = details.cached_tokens if details is not None else None
    return Measured(
        text,
        usage.prompt_tokens,
        usage.completion_tokens,
        read_tokens=read,
        uncached_tokens=None if read is None else usage.prompt_tokens - read,
        first_token_ms=first_ms,
        total_ms=total_ms,
    )


def _marked(talk: Talk, salt: str) -> Sequence[Message]:
    first = talk[0]
    return (Message(first.role, (f"[{salt}] ", *first.content)), *talk[1:])


def _to_openai(message: Message) -> dict[str, Any]:
    if all(isinstance(part, str) for part in message.content):
        return {"role": message.role, "content": "".join(map(str, message.content))}
    return {"role": message.role, "content": [_part(part) for part in message.content]}


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = "bmp" if (part.data or b"").startswith(b"BM") else "png"
    url = f"data:image/{kind};base64,{base64.b64encode(part.data or b'').decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
