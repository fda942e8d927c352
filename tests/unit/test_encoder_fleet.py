"""The fleet on paper: what replicas report, how many there should be, and what the metrics say."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.metrics.registry import Metrics
from services.encoder.book import FORGET_S, SILENCE_S, ReplicaBook
from services.encoder.counters import Pending
from services.encoder.load import Load
from services.encoder.metrics import encoder_series
from services.encoder.scaling import PENDING_TOKENS, TokenPolicy, replicas_for
from services.encoder.shared_memory import check_shared_memory
from triptych.errors import ConfigError
from triptych.v1.encoder_pb2 import ReportReplicaRequest
from triptych.v1.worker_pb2 import ReplicaInfo


class Clock:
    """Time of the test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> ReplicaBook:
    return ReplicaBook(clock)


def report(name: str, *degraded: str, **counters: int) -> ReportReplicaRequest:
    info = ReplicaInfo(replica_id=name, device="cpu", memory_bytes=100, degraded=degraded)
    return ReportReplicaRequest(replica=info, counters=counters)


def names(book: ReplicaBook) -> list[str]:
    return [info.replica_id for info in book.replicas()]


def test_totals_are_the_sum_over_replicas(book: ReplicaBook) -> None:
    for pictures in (1, 4, 6):
        book.take(report("a", pictures=pictures))
    book.take(report("b", pictures=3))
    assert book.totals["pictures"] == 9


def test_the_work_of_the_dead_stays_counted(book: ReplicaBook, clock: Clock) -> None:
    book.take(report("a", pictures=5))
    clock.now = SILENCE_S + 1
    book.take(report("b", pictures=2))
    assert (names(book), book.totals["pictures"]) == (["b"], 7)


def test_a_replica_that_was_frozen_does_not_count_twice(book: ReplicaBook, clock: Clock) -> None:
    book.take(report("a", pictures=5))
    clock.now = FORGET_S - 1
    book.take(report("a", pictures=6))
    assert book.totals["pictures"] == 6


def test_what_stands_is_not_summed(book: ReplicaBook) -> None:
    book.take(report("a", bytes=700, failed_writes=1))
    book.take(report("b", bytes=900))
    assert (book.totals["bytes"], book.totals["failed_writes"]) == (900, 0)


def test_the_fill_of_the_store_is_what_the_last_writer_saw(book: ReplicaBook) -> None:
    for name, fill in (("a", 700), ("b", 900), ("a", 700)):
        book.take(report(name, bytes=fill))
    assert book.totals["bytes"] == 900


def test_unknown_names_are_ignored(book: ReplicaBook) -> None:
    before = set(book.totals)
    book.take(report("a", what_is_this=5))
    assert set(book.totals) == before


def test_complaints_are_said_once_and_end_with_the_replica(book: ReplicaBook, clock: Clock) -> None:
    for name in ("a", "b"):
        book.take(report(name, "bad"))
    assert book.degraded() == ["bad"]
    clock.now = SILENCE_S + 1
    assert book.degraded() == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.floats(0, 10)), max_size=40))
def test_totals_never_fall_and_miss_nothing(steps: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    book, done, before = ReplicaBook(clock), dict.fromkeys("abc", 0), 0
    for name, more, pause in steps:
        clock.now += pause
        done[name] += more
        book.take(report(name, pictures=done[name]))
        assert before <= book.totals["pictures"] == sum(done.values())
        before = book.totals["pictures"]


def test_many_replicas_make_no_more_series(book: ReplicaBook) -> None:
    metrics, load = Metrics(), Load(100)
    metrics.add(lambda: encoder_series(book, load, "lru"))
    before = metrics.render().count(b"\n")
    for number in range(100):
        book.take(report(f"replica{number}", pictures=1))
    assert metrics.render().count(b"\n") == before
    assert b"triptych_encoder_pictures_total 100.0" in metrics.render()
    assert b"triptych_encoder_replicas 100.0" in metrics.render()


def test_pending_tokens_end_with_the_block() -> None:
    pending = Pending()
    with pytest.raises(KeyError), pending.of(10), pending.of(5):
        raise KeyError(pending.tokens)
    assert pending.tokens == 0


@pytest.mark.parametrize(
    ("pending", "replicas"), [([], 1), ([0], 1), ([1000], 1), ([1001], 2), ([2000, 0], 2), ([900, 900, 900], 3)]
)
def test_replicas_follow_pending_tokens(pending: list[float], replicas: int) -> None:
    assert replicas_for(pending, target_tokens=1000) == replicas


class Context:
    """What Ray gives the policy."""

    def __init__(self, metrics: Mapping[str, Mapping[Any, float]] | None) -> None:
        self.aggregated_metrics = metrics


@pytest.mark.parametrize(
    ("metrics", "replicas"),
    [(None, 1), ({}, 1), ({PENDING_TOKENS: {"a": 50.0, "b": 151.0}}, 3), ({"other": {"a": 1e9}}, 1)],
)
def test_the_policy_reads_what_replicas_record(metrics: Mapping[str, Mapping[Any, float]], replicas: int) -> None:
    assert TokenPolicy(target_tokens=100)(Context(metrics)) == (replicas, {})


def test_k10_too_little_shared_memory_stops_the_process_with_both_numbers_and_the_fix() -> None:
    free = shutil.disk_usage("/dev/shm").free
    check_shared_memory(free // 2)
    with pytest.raises(ConfigError, match=rf"{(free + 2**30) // 2**20} MiB.* has \d+ MiB free.*--shm-size"):
        check_shared_memory(free + 2**30)


def test_hosts_without_shared_memory_are_left_to_ray() -> None:
    check_shared_memory(2**60, Path("/nowhere"))
