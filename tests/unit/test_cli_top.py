"""What `triptych top` draws of two snapshots."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from triptych.cli.frame import Rates, frame
from triptych.v1.router_pb2 import QueueStatus, WatchClusterResponse, WorkerStatus
from triptych.v1.worker_pb2 import GetLoadResponse, WorkerInfo, WorkerRole

PREFILL = WorkerRole.WORKER_ROLE_PREFILL


def worker(name: str = "p", reachable: bool = True, degraded: str = "", **load: int) -> WorkerStatus:
    info = WorkerInfo(instance_id=name, role=PREFILL, address=f"{name}:1", model="demo")
    info.degraded.extend([degraded] if degraded else [])
    return WorkerStatus(info=info, load=GetLoadResponse(**load), reachable=reachable)


def snapshot(at_s: float, *workers: WorkerStatus, **counts: Any) -> WatchClusterResponse:
    queue = QueueStatus(waiting=3, tenants=2, tokens=5000)
    return WatchClusterResponse(at_unix_ms=int(at_s * 1000), workers=workers, queue=queue, **counts)


def drawn(earlier: WatchClusterResponse | None, now: WatchClusterResponse) -> str:
    """As on a wide terminal, with single spaces."""
    file = io.StringIO()
    Console(file=file, width=200).print(frame(earlier, now))
    return " ".join(file.getvalue().split())


def test_rates_come_from_two_snapshots() -> None:
    before = snapshot(10, worker(kv_pushed_bytes=1000), completion_tokens=100, kv_transfer_bytes=0)
    after = snapshot(12, worker(kv_pushed_bytes=5096), completion_tokens=300, kv_transfer_bytes=4 * 2**20)
    text = drawn(before, after)
    assert "100 said a second" in text and "2.0 MiB/s from prefill to decode" in text and "2.0 KiB/s" in text


def test_a_first_snapshot_has_shares_and_no_rates() -> None:
    now = snapshot(1, prompt_tokens=200, cache_read_tokens=150, embedding_hits=1, embedding_misses=3)
    text = drawn(None, now)
    assert "KV prefix 75% of 200 tokens" in text and "embeddings 25% of 4" in text and "– said a second" in text


def test_a_router_or_worker_that_began_anew_has_no_rate() -> None:
    before = snapshot(1, worker(kv_pushed_bytes=9), finished_requests=9)
    after = snapshot(2, worker(kv_pushed_bytes=1), finished_requests=9)
    rates = Rates.between(before, after)
    assert rates is not None and rates.moved(after.workers[0], "kv_pushed_bytes") is None
    assert Rates.between(before, snapshot(2, finished_requests=0)) is None


def test_workers_their_blocks_and_what_is_wrong() -> None:
    busy = worker(blocks_in_use=3, blocks_free=7, blocks_cached=4, pending_tokens=77, degraded="the store is full")
    now = snapshot(1, busy, worker("gone", reachable=False), missing=["no encoder worker"])
    text = drawn(None, now)
    for words in ("3 + 4 of 10", "77", "ready", "gone:1 lost", "missing: no encoder", "degraded: the store is full"):
        assert words in text
