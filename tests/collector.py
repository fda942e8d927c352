"""A collector of traces that speaks OTLP over gRPC, as services export them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class Collector(TraceServiceServicer):
    """Remembers service, trace and name of every span; `endpoint` is where it listens."""

    def __init__(self) -> None:
        self.spans: set[tuple[str, str, str]] = set()
        self.endpoint = ""

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans |= {(service, span.trace_id.hex(), span.name) for span in scope.spans}
        return ExportTraceServiceResponse()

    def names(self, service: str) -> set[str]:
        """Of a service's spans in the trace of `CALLER`."""
        return {name for its, trace, name in self.spans if (its, trace) == (service, TRACE)}


@contextmanager
def open_collector() -> Iterator[Collector]:
    """One on a free loopback port."""
    server, collector = grpc.server(ThreadPoolExecutor(1)), Collector()
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
