"""Spans of one request across all services, and the ids that logs carry. Costs next to nothing without an exporter."""

from opentelemetry.trace import Span

from common.tracing.context import adopt, outgoing
from common.tracing.export import start_tracing
from common.tracing.logs import configure_logging
from common.tracing.spans import NO_SPAN, Interval, begin, enter, fail, held, inside, record, span

__all__ = [
    "NO_SPAN",
    "Interval",
    "Span",
    "adopt",
    "begin",
    "configure_logging",
    "enter",
    "fail",
    "held",
    "inside",
    "outgoing",
    "record",
    "span",
    "start_tracing",
]
