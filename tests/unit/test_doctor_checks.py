"""What `triptych doctor` makes of facts: a sound cluster, and each thing that can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from triptych.doctor import Finding, exit_status
from triptych.doctor.certificate import Handshake, check_certificate
from triptych.doctor.clocks import check_clocks
from triptych.doctor.memory import check_redis, check_shared_memory
from triptych.doctor.pages import check_ready
from triptych.doctor.picture import check_picture
from triptych.doctor.workers import DECODE, ENCODER, PREFILL, check_checkpoints, check_reach, check_versions
from triptych.errors import UnavailableError
from triptych.v1.router_pb2 import RouterInfo, WatchClusterResponse, WorkerStatus
from triptych.v1.types_pb2 import Usage
from triptych.v1.worker_pb2 import GetLoadResponse, WorkerInfo

NOW_S = 1_900_000_000
MIB = 2**20
Break = Callable[[WatchClusterResponse], Any]
REDIS: dict[str, Any] = {
    "version": "7.4",
    "policy": "volatile-lru",
    "max_bytes": 1024 * MIB,
    "used_bytes": MIB,
    "append_only": False,
    "snapshots": "",
}


def worker(role: int, port: int) -> WorkerStatus:
    info = WorkerInfo(
        role=role,  # type: ignore[arg-type]
        address=f"host:{port}",
        model="toy",
        version="1",
        config_fingerprint="config",
        model_fingerprint="tower" if role == ENCODER else "text",
        preprocessing_fingerprint="pixels" if role == ENCODER else "",
        shared_memory_bytes=256 * MIB,
        object_store_bytes=80 * MIB,
        embedding_budget_bytes=512 * MIB,
    )
    info.layout.block_size = 16
    return WorkerStatus(info=info, reachable=True, load=GetLoadResponse(at_unix_ms=NOW_S * 1000))


def sound() -> WatchClusterResponse:
    router = RouterInfo(version="1", model="toy", config_fingerprint="config", preprocessing_fingerprint="pixels")
    workers = [worker(ENCODER, 1), worker(ENCODER, 2), worker(PREFILL, 3), worker(DECODE, 4)]
    return WatchClusterResponse(at_unix_ms=NOW_S * 1000, router=router, workers=workers)


def examined(now: WatchClusterResponse) -> Iterator[Finding]:
    yield from check_clocks(now, NOW_S - 1, NOW_S + 1)
    for check in (check_reach, check_versions, check_checkpoints, check_shared_memory):
        yield from check(now)
    yield from check_redis(REDIS, now)


def wrong(findings: Iterator[Finding]) -> list[str]:
    """Subject and text of what is to be fixed; each has advice."""
    found = [finding for finding in findings if finding.level == "fix"]
    assert all(finding.fix for finding in found)
    return [f"{finding.subject}: {finding.text}" for finding in found]


def test_a_sound_cluster_has_nothing_to_fix() -> None:
    findings = list(examined(sound()))
    assert {finding.level for finding in findings} == {"ok"} and exit_status(findings) == 0


def at(number: int, **fields: Any) -> Break:
    """Change the description of one worker."""
    return lambda now: now.workers[number].info.MergeFrom(WorkerInfo(**fields))


def late(now: WatchClusterResponse) -> None:
    now.workers[3].load.at_unix_ms -= 60_000


def lost(now: WatchClusterResponse) -> None:
    now.workers[2].reachable = False


def other_blocks(now: WatchClusterResponse) -> None:
    now.workers[2].info.layout.block_size = 32


def stranger(now: WatchClusterResponse) -> None:
    now.others.add(role=DECODE, address="host:9", model="other")


BROKEN: dict[str, tuple[Break, str]] = {
    "lost": (lost, "prefill host:3: is in the registry and does not answer the router"),
    "other model": (stranger, "decode host:9: serves other, the router toy"),
    "version": (at(3, version="0.9"), "decode host:4: 0.9, the router 1"),
    "config": (at(0, config_fingerprint="else"), "encoder host:1: has another config.json than the router"),
    "processor": (at(0, preprocessing_fingerprint="else"), "encoder host:1: prepares pictures differently"),
    "tower": (
        at(1, model_fingerprint="else"),
        "encoder host:2: has other weights or another dtype than encoder host:1",
    ),
    "weights": (at(2, model_fingerprint="else"), "prefill host:3: fits no decode worker: other weights"),
    "layout": (other_blocks, "prefill host:3: fits no decode worker: block_size"),
    "clock": (late, "decode host:4: is 60 s behind the router"),
    "shm": (at(0, shared_memory_bytes=64 * MIB), "encoder host:1: /dev/shm has 64 MiB, Ray wants 80"),
    "budget": (at(0, embedding_budget_bytes=900 * MIB), "Redis: embeddings may take 900 of its 1024 MiB"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    now, (damage, sentence) = sound(), BROKEN[name]
    damage(now)
    assert any(text.startswith(sentence) for text in wrong(examined(now)))


def test_a_draining_worker_is_no_fault() -> None:
    now = sound()
    now.workers[3].info.draining, now.workers[3].reachable = True, False
    assert wrong(check_reach(now)) == []


def test_a_worker_that_was_heard_a_while_ago_is_no_fault() -> None:
    now = sound()
    now.workers[3].load.at_unix_ms -= 4_000
    assert wrong(check_clocks(now, NOW_S, NOW_S)) == []


@pytest.mark.parametrize(("asked_s", "got_s", "text"), [(30, 31, "30 s behind"), (-31, -30, "30 s ahead of")])
def test_the_clock_of_this_machine_is_compared(asked_s: int, got_s: int, text: str) -> None:
    assert wrong(check_clocks(sound(), NOW_S + asked_s, NOW_S + got_s)) == [f"router: is {text} this machine"]


def test_a_slow_answer_is_no_difference_of_clocks() -> None:
    assert wrong(check_clocks(sound(), NOW_S - 20, NOW_S + 20)) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"max_bytes": 0}, "has no maxmemory"),
        ({"policy": "noeviction"}, "refuses uploads when it is full"),
        ({"append_only": True}, "writes to its disk"),
        ({"snapshots": "3600 1"}, "writes to its disk"),
    ],
)
def test_a_redis_that_is_no_cache_is_told(change: dict[str, Any], text: str) -> None:
    assert [sentence.startswith(f"Redis: {text}") for sentence in wrong(check_redis(REDIS | change, sound()))] == [True]


def test_what_ready_says_is_passed_on() -> None:
    said = {"ready": False, "missing": ["no decode worker"], "degraded": ["the store is down"]}
    assert wrong(check_ready("h:1", said)) == ["http h:1: no decode worker", "http h:1: the store is down"]


def test_a_port_without_a_router_is_told() -> None:
    assert wrong(check_ready("h:1", "refused")) == ["http h:1: no answer: refused"]


@pytest.mark.parametrize(("days", "faults"), [(10, 1), (100, 0)])
def test_a_certificate_is_renewed_in_time(days: int, faults: int) -> None:
    shaken = Handshake(names=("router",), ends_unix_s=NOW_S + days * 86400 + 60)
    found = list(check_certificate("router", shaken, NOW_S))
    assert f"ends in {days} days" in found[0].text and len(wrong(iter(found))) == faults


def test_a_picture_that_is_encoded_twice_is_a_fault() -> None:
    once, again = Usage(embedding_misses=1), Usage(embedding_hits=1)
    assert wrong(check_picture((once, again))) == []
    assert "encoded twice" in wrong(check_picture((once, once)))[0]


def test_a_picture_without_an_answer_is_a_fault() -> None:
    assert wrong(check_picture(UnavailableError("no decode worker"))) == ["test picture: no answer: no decode worker"]


@pytest.mark.parametrize(("level", "status"), [("ok", 0), ("skipped", 0), ("fix", 1), ("unreachable", 2)])
def test_the_status_follows_the_worst(level: Any, status: int) -> None:
    assert exit_status([Finding("a", "b", "ok", "c"), Finding("a", "b", level, "c")]) == status
