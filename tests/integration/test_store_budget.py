"""The byte budget, leases and the two policies, in a real Valkey."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from common.store.budget import Account, Budget, Policy
from common.store.client import embedding_key, lease_key
from common.store.embeddings import EmbeddingStore, Reservation
from common.store.scripts import PREFIX

CAP = 1000
POLICIES: tuple[Policy, ...] = ("lru", "refcount")


def name(number: int) -> str:
    return f"{number:064x}"


def new_store(redis: Redis, policy: Policy = "refcount", ttl_s: float = 60.0, lease_s: float = 60.0) -> EmbeddingStore:
    return EmbeddingStore(redis, ttl_s, Budget(policy, CAP, lease_s))


async def fill(store: EmbeddingStore, *numbers: int, size: int = 250, request: str = "") -> list[bool]:
    return [await store.put(name(number), f"owner{number}", bytes(size), request) for number in numbers]


async def held(redis: Redis) -> list[int]:
    """Which values are really there."""
    return [number for number in range(600) if await redis.exists(embedding_key(name(number)))]


async def real_bytes(redis: Redis) -> int:
    return sum([await redis.strlen(key) for key in await redis.keys(f"{PREFIX}value:*")])


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_least_recently_used_goes_first(redis: Redis, policy: Policy) -> None:
    store = new_store(redis, policy)
    await fill(store, 0, 1, 2, 3)
    await store.touch(name(0))
    await fill(store, 4)
    assert await held(redis) == [0, 2, 3, 4]
    assert (store.counters.evictions, store.counters.bytes) == (1, CAP)


async def test_lru_evicts_what_a_request_needs(redis: Redis) -> None:
    store = new_store(redis, "lru")
    await fill(store, 0, request="live")
    await fill(store, 1, 2, 3, 4)
    assert await held(redis) == [1, 2, 3, 4]


async def test_refcount_keeps_what_a_request_needs(redis: Redis) -> None:
    store = new_store(redis)
    await fill(store, 0, request="live")
    await fill(store, 1, 2, 3, 4)
    assert await held(redis) == [0, 2, 3, 4]


async def test_a_ready_answer_leases(redis: Redis) -> None:
    store = new_store(redis)
    await fill(store, 0, 1, 2, 3)
    assert await store.reserve(name(0), "x", 10, "live") is Reservation.READY
    await fill(store, 4)
    assert await held(redis) == [0, 2, 3, 4]


async def test_when_all_is_leased_the_new_value_is_refused_and_nothing_goes(redis: Redis) -> None:
    store = new_store(redis)
    await fill(store, 0, 1, 2, request="live")
    await fill(store, 3)
    assert await fill(store, 4, size=600) == [False]
    assert await held(redis) == [0, 1, 2, 3]
    assert (store.counters.refused, store.counters.evictions) == (1, 0)


async def test_reading_ends_the_lease_of_the_reader_only(redis: Redis) -> None:
    store = new_store(redis)
    await fill(store, 0, request="one")
    await store.reserve(name(0), "x", 10, "two")
    await store.touch(name(0), "one")
    await fill(store, 1, 2, 3, 4)
    assert 0 in await held(redis)
    await store.unlease(name(0), "two")
    await store.unlease(name(0), "two")
    await fill(store, 5, 6, 7, 8)
    assert await held(redis) == [5, 6, 7, 8]


async def test_a_lease_nobody_ends_expires(redis: Redis) -> None:
    store = new_store(redis, lease_s=0.05)
    await fill(store, 0, request="dead")
    await asyncio.sleep(0.1)
    await fill(store, 1, 2, 3, 4)
    assert await held(redis) == [1, 2, 3, 4]
    assert not await redis.exists(lease_key(name(0)))


async def test_a_value_over_the_budget_is_not_stored_and_costs_nobody(redis: Redis) -> None:
    store = new_store(redis)
    await fill(store, 0)
    await store.reserve(name(1), "owner1", 10)
    assert await fill(store, 1, size=CAP + 1) == [False]
    assert await held(redis) == [0]
    assert await store.reserve(name(1), "next", 10) is Reservation.RESERVED


async def test_writing_a_key_again_counts_it_once(redis: Redis) -> None:
    store = new_store(redis)
    await fill(store, 0, 0, 0, size=400)
    assert await store.account() == Account(1, 400)


@pytest.mark.parametrize("policy", POLICIES)
async def test_bytes_stay_under_the_cap_with_many_writers(redis: Redis, policy: Policy) -> None:
    stores = [new_store(redis, policy) for _ in range(4)]
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(await real_bytes(redis))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(fill(store, *range(at, 500, 4), size=90) for at, store in enumerate(stores)))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert len(seen) > 5 and max(seen) <= CAP
    assert (await stores[0].account()).bytes == await real_bytes(redis) == 990


async def test_after_the_ttl_nothing_is_left(redis: Redis) -> None:
    store = new_store(redis, ttl_s=1, lease_s=1)
    await fill(store, *range(5), request="live")
    async with redis.pipeline() as pipe:
        for key in await redis.keys():
            pipe.pttl(key)
        assert -1 not in await pipe.execute()
    async with asyncio.timeout(20):
        while await redis.keys():  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.1)
    assert await store.account() == Account(0, 0)


async def test_expired_values_leave_the_account_though_others_live(redis: Redis) -> None:
    await fill(new_store(redis, ttl_s=0.05), 0, 1)
    store = new_store(redis)
    await asyncio.sleep(0.1)
    await fill(store, 2)
    assert await store.account() == Account(1, 250)


@pytest.mark.parametrize("lost", ["recency", "sizes", "value:" + name(0), None])
async def test_the_account_heals(redis: Redis, lost: str | None) -> None:
    store = new_store(redis)
    await fill(store, 0, 1)
    await (redis.flushdb() if lost is None else redis.delete(PREFIX + lost))
    await fill(store, *range(10, 20))
    assert (await store.account()).bytes == await real_bytes(redis) <= CAP


async def test_two_encoders_that_finish_together_both_succeed(redis: Redis) -> None:
    stores = [new_store(redis), new_store(redis)]
    assert await asyncio.gather(*(store.put(name(1), f"o{at}", b"v" * 99) for at, store in enumerate(stores))) == [
        True,
        True,
    ]
    assert await redis.get(embedding_key(name(1))) == b"v" * 99
    assert await stores[0].account() == Account(1, 99)
