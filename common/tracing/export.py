"""Where spans go: to an OTLP collector when one is named, else nowhere."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from triptych.version import VERSION


def start_tracing(role: str, endpoint: str | None, ratio: float) -> Callable[[], None]:
    """Export this process's spans to `endpoint` (http://host:4317, OTLP over gRPC); returns what flushes and ends it.

    `ratio` is the part of traces begun here that is recorded; a caller's trace is recorded if the caller records it.
    """
    if endpoint is None:
        return lambda: None
    # Only where it is used: it loads the exporter's own protobuf classes.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return export_to(role, OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://")), ratio)


def export_to(role: str, exporter: SpanExporter, ratio: float = 1.0) -> Callable[[], None]:
    """As `start_tracing`, with an exporter of the caller's. A process has one provider: a second call has no effect."""
    resource = Resource.create({"service.name": f"triptych-{role}", "service.version": VERSION})
    provider = TracerProvider(resource=resource, sampler=ParentBasedTraceIdRatio(ratio), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown
