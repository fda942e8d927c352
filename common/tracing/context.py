"""W3C trace context over gRPC metadata and HTTP headers: `traceparent` and `tracestate`."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_W3C = TraceContextTextMapPropagator()
_FIELDS = frozenset(_W3C.fields)
Metadata = tuple[tuple[str, str], ...]


def outgoing(below: Span | None = None) -> Metadata:
    """Metadata that lets the called service go on with the trace, by default below the current span.

    Empty outside any trace.
    """
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, None if below is None else trace.set_span_in_context(below))
    return tuple(carrier.items())


def adopt(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Make the caller's trace that of the running task, which belongs to this one call and ends with it.

    Malformed context is as good as none.
    """
    carrier = {key: value for key, value in metadata if key in _FIELDS and isinstance(value, str)}
    if carrier:
        attach(_W3C.extract(carrier))
