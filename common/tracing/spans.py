"""Spans, as the services write them. Names and attributes are figures and ids: never a prompt, a picture or a key."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import Span, Status, StatusCode

from triptych.errors import TriptychError

Attribute = str | int | float | bool
_TRACER = trace.get_tracer("triptych")
NO_SPAN = trace.INVALID_SPAN


@dataclass(frozen=True, slots=True)
class Interval:
    """Begin and end of something that has happened already, on the monotonic clock in nanoseconds."""

    begin_ns: int
    end_ns: int


@contextmanager
def span(name: str, **attributes: Attribute) -> Iterator[Span]:
    """A span around the block, and the current one inside it. Not for generators: see `held`.

    An error of ours marks it with its reason, any other with its type.
    """
    with held(name, **attributes) as current, trace.use_span(current, False, False, False):
        yield current


@contextmanager
def held(name: str, **attributes: Attribute) -> Iterator[Span]:
    """As `span`, without making it current: a generator runs in the context of its reader, whoever that is."""
    current = _TRACER.start_span(name, attributes=attributes)
    try:
        yield current
    except BaseException as error:
        fail(current, error)
        raise
    finally:
        current.end()


def begin(name: str, **attributes: Attribute) -> Span:
    """A span that is not made current and lasts until its `end()`, for what outlives the block it begins in."""
    return _TRACER.start_span(name, attributes=attributes)


def enter(current: Span) -> None:
    """Make a span that of the running task, which belongs to this one request and ends with it."""
    attach(trace.set_span_in_context(current))


def inside(current: Span) -> contextvars.Context:
    """The running context with `current` as its span, for a task that works for it."""
    context = contextvars.copy_context()
    context.run(enter, current)
    return context


def fail(current: Span, error: BaseException) -> None:
    """Say why a span ended early: with a word, never with a message."""
    current.set_status(Status(StatusCode.ERROR, _reason(error)))


def record(name: str, interval: Interval, parent: Span, **attributes: Attribute) -> None:
    """A span below `parent` for something that ran in a step shared with others, and was timed there."""
    if not parent.is_recording():
        return
    # Spans carry wall-clock times.
    offset = time.time_ns() - time.monotonic_ns()
    context = trace.set_span_in_context(parent)
    child = _TRACER.start_span(name, context, attributes=attributes, start_time=interval.begin_ns + offset)
    child.end(interval.end_ns + offset)


def _reason(error: BaseException) -> str:
    if isinstance(error, TriptychError):
        return error.reason
    # How a task and a generator learn that nobody wants their work any more.
    return "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else type(error).__name__
