"""One generate request from the caller's side, without I/O: what to send next, given what came back.

Both clients drive it alike: upload what `take_uploads` returns, send `request`, feed every response to `on_response`
and an error to `on_failure`, until `complete`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from triptych.answers import Answer, Delta, Event, Finished, Started, to_answers, to_event
from triptych.errors import (
    DeadlineExceededError,
    ImagesNotFoundError,
    InvalidArgumentError,
    TriptychError,
    UnavailableError,
)
from triptych.messages import Image, Message, Prompt, as_messages, to_wire
from triptych.options import take_grammar, take_tools
from triptych.retry import Retry, Tries
from triptych.v1.router_pb2 import GenerateRequest, GenerateResponse
from triptych.v1.types_pb2 import SamplingParams, Tool

_SAMPLING = frozenset(SamplingParams.DESCRIPTOR.fields_by_name)


class GenerateOptions(TypedDict, total=False):
    """Options of one request; those up to `top_logprobs` are fields of `SamplingParams` and explained there.

    `stop` ends the answer before any of these strings, `request_id` is echoed, `session_id` groups the turns of a
    conversation, `context_policy` tells the metrics how it was cut to what is sent, `cache_salt` separates the caches,
    `prompt_map` asks for `Usage.prompt_map`, `priority` (-8 to 8) decides who goes first among one tenant's waiting
    requests. `timeout_s` (seconds) bounds the whole request, uploads and retries included. None means: not set.

    `n` answers are wanted. `tools` are functions that the model may call, each a `Tool` or a dict as the OpenAI API
    has it; `tool_choice` is "auto", "none", "required" or a function's name. `json_schema` (an object or its text),
    `regex` or `lark` (a grammar) is the language of the answers.
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
    session_id: str | None
    context_policy: str | None
    cache_salt: str | None
    priority: int | None
    prompt_map: bool | None
    n: int | None
    tools: Sequence[Tool | Mapping[str, Any]] | None
    tool_choice: str | None
    parallel_tool_calls: bool | None
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    lark: str | None
    timeout_s: float | None


class Exchange:
    """State of one request: the pictures it may have to send, and the events so far."""

    def __init__(
        self,
        prompt: Prompt,
        model: str,
        options: GenerateOptions,
        retry: Retry | None = None,
        now: Callable[[], float] = time.monotonic,
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
        self._tries = Tries(retry or Retry())

    @property
    def cache_salt(self) -> str | None:
        """Scope of the uploads: that of the request."""
        return self.request.cache_salt if self.request.HasField("cache_salt") else None

    @property
    def complete(self) -> bool:
        """True once the final event is here."""
        return bool(self._events) and isinstance(self._events[-1], Finished) and self._events[-1].last

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

    def on_failure(self, error: TriptychError) -> float:
        """Seconds to wait before the next attempt; raises `error` when there is none.

        Missing pictures are uploaded first, each once. Anything else is tried again until the answer has begun: what
        the caller has seen of it may not be repeated.
        """
        if any(isinstance(event, Delta) for event in self._events):
            raise error
        if isinstance(error, ImagesNotFoundError):
            self._plan_uploads(error)
            return 0.0
        return self._tries.pause_s(error, self.left_s())

    def on_response(self, response: GenerateResponse) -> list[Event]:
        """The events in `response`: one, or none when it is of a later version's kind, or opens a further attempt."""
        event = to_event(response)
        if event is None or (isinstance(event, Started) and self._events):
            return []
        self._events.append(event)
        return [event]

    def on_end(self) -> None:
        """The stream ended without an error; UnavailableError when the final event never came."""
        if not self.complete:
            raise UnavailableError("the stream ended before the answer did")

    def answer(self) -> Answer:
        """The whole answer; UnavailableError while it is not complete."""
        return self.answers()[0]

    def answers(self) -> list[Answer]:
        """All answers, as many as `n` asked for; UnavailableError while one is not complete."""
        answers = to_answers(self._events)
        if not answers:
            raise UnavailableError("the answer is not complete")
        return answers

    def _plan_uploads(self, error: ImagesNotFoundError) -> None:
        if self._events or any(digest not in self._unsent for digest in error.digests):
            raise error
        self._uploads = [self._unsent.pop(digest) for digest in dict.fromkeys(error.digests)]


def _pictures(messages: list[Message]) -> dict[str, Image]:
    parts = [part for message in messages for part in message.content]
    return {part.digest: part for part in parts if isinstance(part, Image) and part.data is not None}


def _build_request(messages: list[Message], model: str, given: dict[str, Any]) -> GenerateRequest:
    sampling = {name: given.pop(name) for name in _SAMPLING & given.keys()}
    stop = given.pop("stop", ())
    try:
        fields = take_tools(given)
        if grammar := take_grammar(given):
            sampling["grammar"] = grammar
        return GenerateRequest(
            model=model,
            messages=[to_wire(message) for message in messages],
            sampling=SamplingParams(**sampling),
            stop=[stop] if isinstance(stop, str) else stop,
            **fields,
            **given,
        )
    except (TypeError, ValueError) as exc:
        raise InvalidArgumentError(f"an option has a wrong name, type or value: {exc}") from exc
