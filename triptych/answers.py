"""What comes back from a request: three kinds of events, and the answers that they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from triptych.messages import ToolCall
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished, GenerateResponse, GenerateStarted, ToolCallDelta
from triptych.v1.types_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_TOOL_CALLS, GeneratedToken, Usage

FinishReason = Literal["stop", "length", "tool_calls"]
_REASONS: dict[int, FinishReason] = {FINISH_REASON_LENGTH: "length", FINISH_REASON_TOOL_CALLS: "tool_calls"}


@dataclass(frozen=True, slots=True)
class Started:
    """The request was accepted; `prompt_tokens` counts text and pictures."""

    request_id: str
    model: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of answer `index`, possibly none yet, the tokens received for it, and pieces of function calls."""

    text: str
    tokens: tuple[GeneratedToken, ...] = ()
    index: int = 0
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of answer `index`: why, and the stop string that was met ("" if none).

    The `last` one has the account of the request; the `usage` of others is empty.
    """

    reason: FinishReason
    matched_stop: str
    usage: Usage
    index: int = 0
    last: bool = True


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
    tool_calls: tuple[ToolCall, ...] = ()


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


def to_answers(events: list[Event]) -> list[Answer]:
    """The answers that `events` add up to, in order, all with the account of the request; none while one is open."""
    if not events or not isinstance(events[0], Started) or not _complete(events[-1]):
        return []
    finishes = sorted((event for event in events if isinstance(event, Finished)), key=lambda event: event.index)
    deltas = [event for event in events if isinstance(event, Delta)]
    usage = next(event.usage for event in finishes if event.last)
    return [_answer(events[0], [each for each in deltas if each.index == end.index], end, usage) for end in finishes]


def _complete(event: Event) -> bool:
    return isinstance(event, Finished) and event.last


def _answer(first: Started, deltas: list[Delta], end: Finished, usage: Usage) -> Answer:
    return Answer(
        text="".join(delta.text for delta in deltas),
        finish_reason=end.reason,
        usage=usage,
        request_id=first.request_id,
        model=first.model,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        matched_stop=end.matched_stop,
        tool_calls=_calls(piece for delta in deltas for piece in delta.tool_calls),
    )


def _calls(pieces: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    calls: dict[int, ToolCall] = {}
    for piece in pieces:
        known = calls.get(piece.index, ToolCall("", "", ""))
        arguments = known.arguments + piece.arguments
        calls[piece.index] = ToolCall(known.id or piece.id, known.name or piece.name, arguments)
    return tuple(calls.values())


def _started(message: GenerateStarted) -> Started:
    return Started(message.request_id, message.model, message.prompt_tokens)


def _delta(message: GenerateDelta) -> Delta:
    return Delta(message.text, tuple(message.tokens), message.index, tuple(message.tool_calls))


def _finished(message: GenerateFinished) -> Finished:
    reason = _REASONS.get(message.reason, "stop")
    return Finished(reason, message.matched_stop, message.usage, message.index, message.HasField("usage"))
