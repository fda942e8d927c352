"""Another server as an endpoint: what its OpenAI API tells, which is less than ours."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from triptych.errors import UnavailableError
from triptych.lab.endpoint import MAX_TOKENS, Reply
from triptych.lab.record import Measured
from triptych.lab.talks import Talk
from triptych.messages import Image, Message


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
            measured = self._read(self._open(talk, salt), began)
        except openai.OpenAIError as error:
            raise UnavailableError(f"the endpoint failed: {error}") from error
        shown = [part.digest for message in talk for part in message.content if isinstance(part, Image)]
        return Reply(replace(measured, images=len(shown), unique_images=len(set(shown))))

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
