"""The page of a worker's metrics: what it shows, and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.engine.blocks import BlockPool
from common.engine.prefix_cache import PrefixCache
from common.metrics.registry import Metrics
from common.metrics.series import Series, counter, gauge, gauges
from common.metrics.server import MetricsServer
from common.store.counters import StoreCounters
from common.store.metrics import read_series, write_series
from common.worker.metrics import worker_series
from triptych.errors import ConfigError
from triptych.v1.worker_pb2 import GetLoadResponse


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample of the page but the version, by its name and labels as they stand there."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    found.pop(next(name for name in found if name.startswith("triptych_build_info{")))
    return found


def test_numbers_are_asked_for_when_somebody_looks() -> None:
    now = [1.0]
    metrics = Metrics()
    metrics.add(lambda: [gauge("x", "x", now[0]), counter("y", "y", 7)])
    now[0] = 2.0
    assert samples(metrics) == {"triptych_x{}": 2.0, "triptych_y_total{}": 7.0}


def test_two_sources_share_a_series() -> None:
    metrics = Metrics()
    for stage in ("prefill", "decode"):
        metrics.add(lambda stage=stage: [gauges("x", "x", "stage", {stage: 1})])  # type: ignore[misc]
    assert set(samples(metrics)) == {"triptych_x{stage=decode}", "triptych_x{stage=prefill}"}


def test_the_store_s_account() -> None:
    metrics = Metrics()
    seen = asdict(StoreCounters(hits=3, memory_hits=2, misses=1, corrupt=4, evictions=5, write_errors=6))
    metrics.add(lambda: [*read_series(seen, "encoder"), *write_series(seen, "lru")])
    found = samples(metrics)
    assert found["triptych_store_lookups_total{found=memory,stage=encoder}"] == 2
    assert found["triptych_store_corrupt_total{stage=encoder}"] == 4
    assert found["triptych_store_evictions_total{policy=lru}"] == 5
    assert found["triptych_store_write_errors_total{}"] == 6


def test_a_worker_s_pool_and_requests() -> None:
    metrics, cache = Metrics(), PrefixCache(BlockPool(10))
    cache.allocate(3)
    loads = {"prefill": GetLoadResponse(waiting_requests=2, pending_tokens=40), "decode": GetLoadResponse()}
    metrics.add(lambda: worker_series(cache, loads))
    found = samples(metrics)
    assert found["triptych_kv_blocks{state=used}"] + found["triptych_kv_blocks{state=free}"] == 10
    assert found["triptych_worker_requests{stage=prefill,state=waiting}"] == 2
    assert found["triptych_worker_pending_tokens{stage=decode}"] == 0


@pytest.fixture
async def port() -> AsyncIterator[int]:
    metrics = Metrics()
    metrics.add(lambda: [Series("gauge", "x", "x", {("a", "b"): 1}, ("one", "two"))])
    server = MetricsServer("127.0.0.1", 0, metrics.render)
    yield await server.start()
    await server.close()


async def say(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_page_over_http(port: int) -> None:
    answer = await say(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b'triptych_x{one="a",two="b"} 1.0' in body


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"GET / HTTP/1.1", b"404"), (b"POST /metrics HTTP/1.1", b"405"), (b"nonsense", b"405")],
)
async def test_everything_else_is_refused(port: int, request_line: bytes, status: bytes) -> None:
    assert (await say(port, request_line + b"\r\n\r\n")).split(b" ")[1] == status


async def test_who_hangs_up_or_says_too_much_harms_nobody(port: int) -> None:
    _, gone = await asyncio.open_connection("127.0.0.1", port)
    gone.close()
    assert await say(port, b"GET /metrics HTTP/1.1\r\n" + b"x" * 2**15) == b""
    assert b"200 OK" in await say(port, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_closing_hangs_up_on_the_silent() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: b"")
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
    await asyncio.sleep(0)
    await server.close()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_taken_port_stops_the_process_with_a_sentence(port: int) -> None:
    with pytest.raises(ConfigError, match=str(port)):
        await MetricsServer("127.0.0.1", port, lambda: b"").start()
