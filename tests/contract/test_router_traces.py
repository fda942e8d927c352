"""A router process exports its spans to an OTLP collector; this one is written here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.contract.router_bench import MODEL
from tests.contract.test_router_process import wait_until_alive
from tests.valkey import free_port

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class Collector(TraceServiceServicer):
    """Remembers service, trace and name of every span."""

    def __init__(self) -> None:
        self.spans: set[tuple[str, str, str]] = set()

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans |= {(service, span.trace_id.hex(), span.name) for span in scope.spans}
        return ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server, collector = grpc.server(ThreadPoolExecutor(1)), Collector()
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def test_spans_reach_a_collector_and_logs_name_their_trace(collector: tuple[Collector, str], valkey_url: str) -> None:
    port, (collected, endpoint) = free_port(), collector
    flags = ["--model", str(MODEL), "--redis-url", valkey_url, "--port", "0", "--http-port", str(port)]
    flags += ["--otlp-endpoint", endpoint, "--log-format", "json"]
    process = subprocess.Popen([sys.executable, "-m", "services.router", *flags], stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_alive(process, url)
        body = {"messages": [{"role": "user", "content": "nobody is there"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=CALLER).status_code == 503
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert {("triptych-router", TRACE, name) for name in ("request", "admission")} <= collected.spans
    assert all({"message", "trace_id"} <= json.loads(line).keys() for line in log.decode().splitlines())
