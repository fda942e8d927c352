"""Spans, as the services write them. Names and attributes are figures and ids: never a prompt, a picture or a key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from triptych.errors import TriptychError

Attribute = str | int | float | bool
_TRACER = trace.get_tracer("triptych")


@dataclass(frozen=True, slots=True)
class Interval:
    """Begin and end of something that has happened already, on the monotonic clock in nanoseconds."""

    begin_ns: int
    end_ns: int


@contextmanager
def span(name: str, **attributes: Attribute) -> Iterator[Span]:
    """A span around the block; an error of ours marks it with its reason, any other with its type."""
    with _TRACER.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except BaseException as error:
            reason = error.reason if isinstance(error, TriptychError) else type(error).__name__
            current.set_status(Status(StatusCode.ERROR, reason))
            raise


def record(name: str, interval: Interval, parent: Span, **attributes: Attribute) -> None:
    """A span below `parent` for something that ran in a step shared with others, and was timed there."""
    if not parent.is_recording():
        return
    # Spans carry wall-clock times.
    offset = time.time_ns() - time.monotonic_ns()
    context = trace.set_span_in_context(parent)
    child = _TRACER.start_span(name, context, attributes=attributes, start_time=interval.begin_ns + offset)
    child.end(interval.end_ns + offset)
