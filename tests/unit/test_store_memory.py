"""The tier in memory, the shelves of the encoder's front, and one computation a key."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from common.store.images import StoredImage
from common.store.memory import MemoryTier
from services.encoder.desk import Desk, Shelf
from services.encoder.flights import Flights
from services.router.pictures.recent import ENTRY_BYTES, RecentUploads


def test_the_least_recently_used_goes_first() -> None:
    tier: MemoryTier[str] = MemoryTier(30)
    for key in "abc":
        tier.put(key, key, 10)
    tier.get("a")
    tier.put("d", "d", 10)
    assert [key for key in "abcd" if tier.get(key)] == ["a", "c", "d"]


def test_too_large_a_value_costs_nobody() -> None:
    tier: MemoryTier[str] = MemoryTier(30)
    tier.put("a", "a", 30)
    assert not tier.put("b", "b", 31)
    assert tier.get("a") == "a"


def test_without_a_budget_nothing_is_kept() -> None:
    tier: MemoryTier[str] = MemoryTier(0)
    assert not tier.put("a", "a", 1)
    assert len(tier) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40), st.booleans())))
def test_bytes_are_those_of_the_values_and_bounded(steps: list[tuple[str, int, bool]]) -> None:
    tier: MemoryTier[int] = MemoryTier(50)
    for key, size, keep in steps:
        if keep:
            tier.put(key, size, size)
        else:
            tier.drop(key)
        held = [tier.get(key) or 0 for key in "abcdef"]
        assert tier.bytes == sum(held) <= 50


def test_a_shelf_holds_for_a_while() -> None:
    now = [0.0]
    shelf = Shelf(100, ttl_s=10, clock=lambda: now[0])
    shelf.put("a", b"1")
    now[0] = 9.9
    assert shelf.get("a") == b"1"
    now[0] = 10.0
    assert shelf.get("a") is None
    assert shelf.size_bytes == 0


def test_pictures_and_embeddings_do_not_crowd_each_other_out() -> None:
    desk = Desk(max_bytes=20)
    desk.embeddings.put("e", bytes(10))
    for number in range(5):
        desk.pictures.put(str(number), bytes(10))
    assert desk.embeddings.get("e") is not None
    assert desk.embeddings.size_bytes + desk.pictures.size_bytes == 20


async def test_a_key_is_computed_by_one_at_a_time_and_others_in_parallel() -> None:
    flights, running, most = Flights(), dict.fromkeys("ab", 0), []

    async def compute(key: str) -> None:
        async with flights.alone(key):
            running[key] += 1
            await asyncio.sleep(0)
            most.append((max(running.values()), sum(running.values())))
            running[key] -= 1

    await asyncio.gather(*(compute(key) for key in "aabbab"))
    assert max(most) == (1, 2)
    assert len(flights) == 0


async def test_a_cancelled_waiter_leaves_nothing() -> None:
    flights = Flights()
    async with flights.alone("a"):
        waiting = asyncio.create_task(flights.alone("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(flights) == 0


def test_many_tiny_uploads_are_bounded_by_what_they_take_and_not_by_their_bytes() -> None:
    recent = RecentUploads(10 * ENTRY_BYTES)
    names = [f"{number:064}" for number in range(20)]
    for name in names:
        recent.put("scope", StoredImage(name, name, 1, 1), b"tiny")
    assert list(recent.find("scope", names)) == names[-9:]
