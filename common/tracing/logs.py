"""The log of a service: one line a record, for people or as JSON, with the trace it belongs to."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from opentelemetry import trace
from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]
_TEXT = "%(asctime)s {role} %(levelname)s %(name)s: %(message)s%(trace)s"


class _TraceFilter(logging.Filter):
    """Adds the ids of the trace that is running; empty outside one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always lets the record pass."""
        context = trace.get_current_span().get_span_context()
        trace_id = f"{context.trace_id:032x}" if context.is_valid else ""
        record.trace_id = trace_id
        record.span_id = f"{context.span_id:016x}" if context.is_valid else ""
        record.trace = f" [trace {trace_id}]" if context.is_valid else ""
        return True


def configure_logging(role: str, level: str, style: LogFormat = "text") -> None:
    """Everything on stderr: lines for people, or JSON with time, level, role, logger, message and the trace's ids."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_TraceFilter())
    handler.setFormatter(_json(role) if style == "json" else logging.Formatter(_TEXT.format(role=role)))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _json(role: str) -> logging.Formatter:
    return JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s %(trace_id)s %(span_id)s",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        static_fields={"role": role},
        json_ensure_ascii=False,
    )
