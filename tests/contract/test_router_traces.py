"""A router process exports its spans to an OTLP collector, and its log names their trace."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx

from tests.collector import CALLER, open_collector
from tests.router_process import router_process


def test_spans_reach_a_collector_and_logs_name_their_trace(valkey_url: str, tmp_path: Path) -> None:
    with open_collector() as collector:
        log = ask_nobody(valkey_url, tmp_path, "--otlp-endpoint", collector.endpoint, "--log-format", "json")
    assert {"request", "admission"} <= collector.names("triptych-router")
    assert all({"message", "trace_id"} <= json.loads(line).keys() for line in log.splitlines())


def ask_nobody(redis_url: str, directory: Path, *flags: str) -> str:
    """One request to a router without workers; its whole log."""
    with router_process(redis_url, directory, *flags) as router:
        body = {"messages": [{"role": "user", "content": "nobody is there"}]}
        assert httpx.post(f"{router.url}/v1/chat/completions", json=body, headers=CALLER).status_code == 503
        router.process.send_signal(signal.SIGTERM)
        router.process.wait(timeout=30)
        return router.log()
