"""The registry of workers: the pure view, and both sides against a real Valkey."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from google.protobuf import json_format
from redis.asyncio import Redis

from common.store.client import WORKER_INDEX, connect, worker_key
from common.store.directory import Directory
from common.store.registry import GONE, Registration
from common.store.view import Entry, View
from tests.valkey import ValkeyServer, run_valkey
from triptych.v1.worker_pb2 import WORKER_ROLE_DECODE, WorkerInfo


def worker(name: str, address: str = "") -> WorkerInfo:
    return WorkerInfo(instance_id=name, role=WORKER_ROLE_DECODE, address=address or f"{name}:1")


def entry(info: WorkerInfo, expires_ms: float = 1000.0) -> Entry:
    return Entry(json_format.MessageToJson(info).encode(), expires_ms)


def names(workers: tuple[WorkerInfo, ...]) -> list[str]:
    return [info.instance_id for info in workers]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.01)


def test_the_view_is_sorted_and_says_when_it_changed() -> None:
    view = View(grace_s=2)
    entries = {"b": entry(worker("b")), "a": entry(worker("a"))}
    assert view.update(entries, now=0.0)
    assert names(view.workers) == ["a", "b"]
    assert not view.update(entries, now=1.0)


def test_a_vanished_worker_stays_for_the_grace_only() -> None:
    view = View(grace_s=2)
    view.update({"a": entry(worker("a"))}, now=0.0)
    view.update({}, now=10.0)
    view.update({}, now=11.9)
    assert names(view.workers) == ["a"]
    view.update({}, now=12.1)
    assert view.workers == ()


def test_the_grace_begins_anew_after_every_heartbeat() -> None:
    view = View(grace_s=2)
    for now in (0.0, 3.0, 6.0):
        view.update({"a": entry(worker("a"))}, now)
        view.update({}, now + 1.5)
    assert names(view.workers) == ["a"]


def test_a_goodbye_is_believed_at_once() -> None:
    view = View(grace_s=2)
    view.update({"a": entry(worker("a"))}, now=0.0)
    view.update({"a": Entry(GONE, 2000.0)}, now=0.1)
    assert view.workers == ()


def test_the_latest_heartbeat_owns_an_address() -> None:
    view = View(grace_s=2)
    old, new = worker("old", "host:1"), worker("new", "host:1")
    view.update({"new": entry(new, 2000.0), "old": entry(old, 1500.0)}, now=0.0)
    assert names(view.workers) == ["new"]


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        json_format.MessageToJson(worker("other")).encode(),
        json_format.MessageToJson(WorkerInfo(instance_id="a", address="a:1")).encode(),
    ],
)
def test_a_malformed_entry_is_no_worker_and_counted(value: bytes) -> None:
    view = View(grace_s=2)
    view.update({"a": Entry(value, 1.0)}, now=0.0)
    assert (view.workers, view.malformed) == ((), 1)


def test_a_worker_whose_address_was_cleared_is_gone() -> None:
    """L02"""
    view = View(grace_s=2)
    view.update({"a": entry(worker("a"))}, now=0.0)
    view.update({"a": entry(WorkerInfo(instance_id="a", role=WORKER_ROLE_DECODE))}, now=0.1)
    assert view.workers == ()


def test_a_field_of_a_newer_version_is_no_fault() -> None:
    view = View(grace_s=2)
    text = b'{"instanceId": "a", "role": "WORKER_ROLE_DECODE", "address": "a:1", "novelty": 3}'
    view.update({"a": Entry(text, 1.0)}, now=0.0)
    assert names(view.workers) == ["a"]


@pytest.fixture
async def directory(redis: Redis) -> AsyncIterator[Directory]:
    reader = Directory(redis, every_s=0.02, grace_s=0.2)
    reader.start()
    yield reader
    await reader.close()


async def test_a_worker_appears_and_leaves(redis: Redis, directory: Directory) -> None:
    registration = Registration(redis, lambda: worker("a"), every_s=0.05)
    registration.start()
    await until(lambda: names(directory.workers()) == ["a"])
    await registration.close()
    await until(lambda: directory.workers() == ())


async def test_a_killed_worker_expires_and_leaves_no_trace(redis: Redis, directory: Directory) -> None:
    await Registration(redis, lambda: worker("killed"), ttl_s=0.3).announce()
    await until(lambda: names(directory.workers()) == ["killed"])
    await until(lambda: directory.workers() == ())
    await Registration(redis, lambda: worker("next")).announce()
    assert await redis.zrange(WORKER_INDEX, 0, -1) == [b"next"]
    assert set(await redis.keys()) == {WORKER_INDEX.encode(), worker_key("next").encode()}


async def test_a_change_wakes_the_waiting(redis: Redis, directory: Directory) -> None:
    waiting = asyncio.create_task(directory.changed())
    await asyncio.sleep(0)
    await Registration(redis, lambda: worker("a")).announce()
    async with asyncio.timeout(5):
        await waiting
    assert names(directory.workers()) == ["a"]


async def test_a_new_description_is_seen(redis: Redis, directory: Directory) -> None:
    info = worker("a")
    registration = Registration(redis, lambda: info)
    await registration.announce()
    await until(lambda: names(directory.workers()) == ["a"])
    info.draining = True
    await registration.announce()
    await until(lambda: directory.workers()[0].draining)


async def test_a_flush_is_not_noticed(redis: Redis) -> None:
    reader = Directory(redis, every_s=0.02, grace_s=5)
    reader.start()
    registration = Registration(redis, lambda: worker("a"), every_s=0.05)
    registration.start()
    await until(lambda: names(reader.workers()) == ["a"])
    changed = asyncio.create_task(reader.changed())
    await redis.flushall()
    await asyncio.sleep(0.2)
    assert not changed.done()
    changed.cancel()
    await registration.close()
    await reader.close()


async def test_the_view_survives_an_outage_and_the_heartbeat_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    with run_valkey() as server:
        redis = connect(server.url)
        reader = Directory(redis, every_s=0.02)
        registration = Registration(redis, lambda: worker("a"), every_s=0.02)
        reader.start()
        registration.start()
        await until(lambda: names(reader.workers()) == ["a"])
        await _outage(server)
        assert names(reader.workers()) == ["a"]
        server.start()
        await _until_announced(redis)
        await registration.close()
        await reader.close()
        await redis.aclose()
    assert sum("waiting for Redis" in record.message for record in caplog.records) == 2


async def _outage(server: ValkeyServer) -> None:
    server.stop()
    await asyncio.sleep(0.3)


async def _until_announced(redis: Redis) -> None:
    async with asyncio.timeout(10):
        while not await redis.exists(worker_key("a")):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.02)


async def test_a_failing_description_does_not_end_the_heartbeat(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    calls = iter(range(1000))

    def info() -> WorkerInfo:
        return worker("a") if next(calls) > 4 else worker(1)  # type: ignore[arg-type]

    registration = Registration(redis, info, every_s=0.01)
    registration.start()
    await _until_announced(redis)
    await registration.close()


async def test_closing_twice_is_harmless(redis: Redis) -> None:
    registration = Registration(redis, lambda: worker("a"))
    registration.start()
    await registration.close()
    await registration.close()
    assert await redis.get(worker_key("a")) == GONE
