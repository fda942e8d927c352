"""Spans of one request across all services, and the ids that logs carry. Costs next to nothing without an exporter."""

from common.tracing.context import adopt, outgoing
from common.tracing.export import start_tracing
from common.tracing.logs import configure_logging
from common.tracing.spans import Interval, record, span

__all__ = ["Interval", "adopt", "configure_logging", "outgoing", "record", "span", "start_tracing"]
