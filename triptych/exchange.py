"""One generate request from the caller's side, without I/O: what to send next, given what came back.

Both clients drive it alike: upload what `take_uploads` returns, send `request`, feed every response to `on_response`
and a NOT_FOUND to `on_missing`, until `complete`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from triptych.answers import Answer, Event, Finished, to_answer, to_event
from triptych.errors import DeadlineExceededError, ImagesNotFoundError, InvalidArgumentError, UnavailableError
from triptych.messages import Image, Message, Prompt, as_messages, to_wire
from triptych.v1.router_pb2 import GenerateRequest, GenerateResponse
from triptych.v1.types_pb2 import SamplingParams

_SAMPLING = frozenset(SamplingParams.DESCRIPTOR.fields_by_name)


class GenerateOptions(TypedDict, total=False):
    """Options of one request; all but the last four are fields of `SamplingParams` and explained there.

    `stop` ends the answer before any of these strings, `request_id` is echoed, `cache_salt` separates the caches,
    `timeout_s` (seconds) bounds the whole request, uploads included. None means: not set.
    """

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    top_logprobs: int | None
    stop: str | Sequence[str] | None
    request_id: str | None
    cache_salt: str | None
    timeout_s: float | None


class Exchange:
    """State of one request: the pictures it may have to send, and the events so far."""

    def __init__(
        self, prompt: Prompt, model: str, options: GenerateOptions, now: Callable[[], float] = time.monotonic
    ) -> None:
        messages = as_messages(prompt)
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        timeout_s: float | None = given.pop("timeout_s", None)
        self._now = now
        self._deadline = None if timeout_s is None else now() + timeout_s
        self.request = _build_request(messages, model, given)
        self._unsent = _pictures(messages)
        self._uploads: list[Image] = []
        self._events: list[Event] = []

    @property
    def cache_salt(self) -> str | None:
        """Scope of the uploads: that of the request."""
        return self.request.cache_salt if self.request.HasField("cache_salt") else None

    @property
    def complete(self) -> bool:
        """True once the final event is here."""
        return bool(self._events) and isinstance(self._events[-1], Finished)

    def left_s(self) -> float | None:
        """Seconds until the deadline, None without one; DeadlineExceededError when it has passed."""
        if self._deadline is None:
            return None
        left = self._deadline - self._now()
        if left <= 0:
            raise DeadlineExceededError("the request did not finish in time")
        return left

    def take_uploads(self) -> list[Image]:
        """The pictures to upload before the next attempt, each handed out once."""
        taken, self._uploads = self._uploads, []
        return taken

    def on_missing(self, error: ImagesNotFoundError) -> None:
        """Plan the upload of exactly the missing pictures; raise `error` when one cannot be sent, or was already."""
        if self._events or any(digest not in self._unsent for digest in error.digests):
            raise error
        self._uploads = [self._unsent.pop(digest) for digest in dict.fromkeys(error.digests)]

    def on_response(self, response: GenerateResponse) -> list[Event]:
        """The events in `response`: one, or none when it is of a later version's kind."""
        event = to_event(response)
        if event is None:
            return []
        self._events.append(event)
        return [event]

    def on_end(self) -> None:
        """The stream ended without an error; UnavailableError when the final event never came."""
        if not self.complete:
            raise UnavailableError("the stream ended before the answer did")

    def answer(self) -> Answer:
        """The whole answer; UnavailableError while it is not complete."""
        answer = to_answer(self._events)
        if answer is None:
            raise UnavailableError("the answer is not complete")
        return answer


def _pictures(messages: list[Message]) -> dict[str, Image]:
    parts = [part for message in messages for part in message.content]
    return {part.digest: part for part in parts if isinstance(part, Image) and part.data is not None}


def _build_request(messages: list[Message], model: str, given: dict[str, Any]) -> GenerateRequest:
    sampling = {name: given.pop(name) for name in _SAMPLING & given.keys()}
    stop = given.pop("stop", ())
    try:
        return GenerateRequest(
            model=model,
            messages=[to_wire(message) for message in messages],
            sampling=SamplingParams(**sampling),
            stop=[stop] if isinstance(stop, str) else stop,
            **given,
        )
    except (TypeError, ValueError) as exc:
        raise InvalidArgumentError(f"an option has a wrong name, type or value: {exc}") from exc
