"""What comes back from a request: three kinds of events, and the answer that they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished, GenerateResponse, GenerateStarted
from triptych.v1.types_pb2 import FINISH_REASON_LENGTH, GeneratedToken, Usage

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Started:
    """The request was accepted; `prompt_tokens` counts text and pictures."""

    request_id: str
    model: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More text, possibly none yet, and the tokens received for it."""

    text: str
    tokens: tuple[GeneratedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: why, the stop string that was met ("" if none), and the account of the request."""

    reason: FinishReason
    matched_stop: str
    usage: Usage


Event = Started | Delta | Finished


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    request_id: str
    model: str
    tokens: tuple[GeneratedToken, ...]
    matched_stop: str = ""


def to_event(response: GenerateResponse) -> Event | None:
    """The event in one message of the stream; None for a kind that this version does not know."""
    match response.WhichOneof("event"):
        case "started":
            return _started(response.started)
        case "delta":
            return _delta(response.delta)
        case "finished":
            return _finished(response.finished)
        case _:
            return None


def to_answer(events: list[Event]) -> Answer | None:
    """The answer that `events` add up to; None while the last one is missing."""
    if not events or not isinstance(events[0], Started) or not isinstance(events[-1], Finished):
        return None
    first, last = events[0], events[-1]
    deltas = [event for event in events if isinstance(event, Delta)]
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    text = "".join(delta.text for delta in deltas)
    return Answer(text, last.reason, last.usage, first.request_id, first.model, tokens, last.matched_stop)


def _started(message: GenerateStarted) -> Started:
    return Started(message.request_id, message.model, message.prompt_tokens)


def _delta(message: GenerateDelta) -> Delta:
    return Delta(message.text, tuple(message.tokens))


def _finished(message: GenerateFinished) -> Finished:
    reason: FinishReason = "length" if message.reason == FINISH_REASON_LENGTH else "stop"
    return Finished(reason, message.matched_stop, message.usage)
