"""Spans, their context on the wire, and logs that name their trace."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from common.tracing import Interval, adopt, configure_logging, outgoing, record, span, spans
from triptych.errors import UnavailableError


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What a collector would get. The process's one provider is left alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_TRACER", provider.get_tracer("test"))
    return exporter


def test_nothing_is_recorded_and_nothing_sent_without_an_exporter() -> None:
    with span("alone", tokens=1) as current:
        assert not current.is_recording() and outgoing() == ()


def test_a_called_service_goes_on_with_the_callers_trace(exported: InMemorySpanExporter) -> None:
    async def served(metadata: tuple[tuple[str, str], ...]) -> None:
        adopt(metadata)
        with span("inner"):
            await asyncio.sleep(0)

    async def main() -> None:
        with span("outer"):
            metadata = outgoing()
        await asyncio.create_task(served(metadata))

    asyncio.run(main())
    outer, inner = exported.get_finished_spans()
    assert inner.parent is not None and inner.parent.span_id == outer.context.span_id


def test_a_context_ends_with_its_call(exported: InMemorySpanExporter) -> None:
    async def main() -> None:
        with span("other"):
            metadata = outgoing()
        await asyncio.create_task(_adopting(metadata))
        with span("next"):
            pass

    asyncio.run(main())
    assert exported.get_finished_spans()[-1].parent is None


async def _adopting(metadata: tuple[tuple[str, str], ...]) -> None:
    adopt(metadata)


@pytest.mark.parametrize("value", ["", "00-zz-yy-01", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"])
def test_malformed_context_is_none(value: str, exported: InMemorySpanExporter) -> None:
    async def main() -> None:
        adopt([("traceparent", value), ("other", b"x")])
        with span("begun here"):
            pass

    asyncio.run(main())
    assert exported.get_finished_spans()[0].parent is None


def test_errors_mark_their_span_with_a_reason_and_no_text(exported: InMemorySpanExporter) -> None:
    with pytest.raises(UnavailableError), span("failing"):
        raise UnavailableError("the secret prompt")
    (failed,) = exported.get_finished_spans()
    assert failed.status.status_code is StatusCode.ERROR and "secret" not in failed.to_json()


def test_something_timed_elsewhere_keeps_its_times(exported: InMemorySpanExporter) -> None:
    now = time.monotonic_ns()
    with span("request") as parent:
        record("prefill chunk", Interval(now - 5_000_000, now - 2_000_000), parent, tokens=16)
    chunk, request = exported.get_finished_spans()
    assert (chunk.end_time or 0) - (chunk.start_time or 0) == 3_000_000
    assert chunk.parent is not None and chunk.parent.span_id == request.context.span_id
    assert dict(chunk.attributes or {}) == {"tokens": 16}


def test_json_lines_name_their_trace(exported: InMemorySpanExporter, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:], logging.root.level
    try:
        configure_logging("router", "INFO", "json")
        with span("request") as current:
            logging.getLogger("x").info("hello %d", 1)
        line = json.loads(capsys.readouterr().err)
    finally:
        logging.root.handlers[:], logging.root.level = before
    trace_id = f"{current.get_span_context().trace_id:032x}"
    assert (line["message"], line["role"], line["level"], line["trace_id"]) == ("hello 1", "router", "INFO", trace_id)
