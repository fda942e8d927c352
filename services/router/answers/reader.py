"""What the text of an answer says: words for the reader, and function calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from triptych.v1.router_pb2 import ToolCallDelta


@dataclass
class Said:
    """What a piece of an answer says: text for the reader, and news of function calls."""

    text: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class Reader(Protocol):
    """Takes the text of an answer apart."""

    @property
    def calls(self) -> int:
        """Calls begun so far."""

    @property
    def ended(self) -> bool:
        """True once the answer must end, whatever the model would say next."""

    def push(self, text: str) -> Said:
        """What is certain now."""

    def finish(self) -> Said:
        """The rest, once no more text can come."""


class PlainReader:
    """For answers without functions: everything is text."""

    calls = 0
    ended = False

    def push(self, text: str) -> Said:
        """See `Reader`."""
        return Said(text)

    def finish(self) -> Said:
        """See `Reader`."""
        return Said()


def merge(deltas: Iterable[ToolCallDelta]) -> list[ToolCallDelta]:
    """Whole calls from their pieces."""
    calls: dict[int, ToolCallDelta] = {}
    for delta in deltas:
        call = calls.setdefault(delta.index, ToolCallDelta(index=delta.index))
        call.id, call.name = call.id or delta.id, call.name or delta.name
        call.arguments += delta.arguments
    return list(calls.values())
