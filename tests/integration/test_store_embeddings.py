"""Embeddings in a real Valkey: states, single flight, damage."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

import pytest
import torch
from redis.asyncio import Redis
from torch import Tensor

from common.store import client, codec
from common.store.client import connect
from common.store.embeddings import EmbeddingStore, Reservation
from common.store.scripts import PREFIX
from tests.stored import publish
from tests.valkey import start_valkey
from triptych.errors import UnavailableError

KEY = "a" * 64
OTHER = "b" * 64


def tensors(rows: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {
        "embeddings": torch.randn(rows, 8, generator=generator),
        "deepstack.0": torch.randn(rows, 8, generator=generator).bfloat16(),
    }


def equal(one: dict[str, Tensor] | None, two: dict[str, Tensor]) -> bool:
    if one is None or one.keys() != two.keys():
        return False
    return all(one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in two)


@pytest.fixture
def store(redis: Redis) -> EmbeddingStore:
    return EmbeddingStore(redis)


async def test_several_named_tensors_come_back_exactly(store: EmbeddingStore) -> None:
    await publish(store, KEY, "me", tensors())
    assert equal(await store.get(KEY, rows=5), tensors())
    assert store.counters.hits == 1


async def test_an_absent_key_is_a_miss(store: EmbeddingStore) -> None:
    assert await store.get(KEY) is None
    assert await store.size(KEY) is None
    assert (store.counters.misses, store.counters.corrupt) == (2, 0)


async def test_the_size_is_that_of_the_stored_value(store: EmbeddingStore, redis: Redis) -> None:
    published = await publish(store, KEY, "me", tensors())
    assert published == await store.size(KEY, rows=5) == await redis.strlen(client.embedding_key(KEY))


async def test_one_of_many_may_compute(store: EmbeddingStore) -> None:
    answers = await asyncio.gather(*(store.reserve(KEY, f"owner{index}", 10) for index in range(20)))
    assert sorted(answer.name for answer in answers) == ["BUSY"] * 19 + ["RESERVED"]


async def test_an_owner_whose_answer_was_lost_may_ask_again(store: EmbeddingStore) -> None:
    await store.reserve(KEY, "me", 10)
    assert await store.reserve(KEY, "me", 10) is Reservation.RESERVED


async def test_a_published_key_is_ready_and_no_longer_reserved(store: EmbeddingStore, redis: Redis) -> None:
    await store.reserve(KEY, "me", 10)
    await publish(store, KEY, "me", tensors())
    assert await store.reserve(KEY, "other", 10) is Reservation.READY
    assert not await redis.exists(client.reservation_key(KEY))


async def test_a_released_key_may_be_computed_by_another(store: EmbeddingStore) -> None:
    await store.reserve(KEY, "me", 10)
    await store.release(KEY, "me")
    await store.release(KEY, "me")
    assert await store.reserve(KEY, "other", 10) is Reservation.RESERVED


async def test_nobody_ends_or_renews_the_reservation_of_another(store: EmbeddingStore, redis: Redis) -> None:
    await store.reserve(KEY, "me", 10)
    await store.release(KEY, "other")
    await store.renew({"other": KEY}, 1000)
    assert await store.reserve(KEY, "other", 10) is Reservation.BUSY
    assert await redis.pttl(client.reservation_key(KEY)) <= 10_000


async def test_the_reservation_of_a_dead_owner_is_taken_over(store: EmbeddingStore) -> None:
    await store.reserve(KEY, "dead", 0.1)
    assert not await store.wait(KEY, timeout_s=10)
    assert await store.reserve(KEY, "heir", 10) is Reservation.RESERVED


async def test_a_renewed_reservation_lives_on(store: EmbeddingStore, redis: Redis) -> None:
    await store.reserve(KEY, "me", 1)
    await store.renew({"me": KEY}, 100)
    assert await redis.pttl(client.reservation_key(KEY)) > 1000


async def test_a_waiter_is_woken_by_the_value(store: EmbeddingStore) -> None:
    await store.reserve(KEY, "me", 10)
    waiting = asyncio.create_task(store.wait(KEY, timeout_s=10))
    await asyncio.sleep(0.02)
    await publish(store, KEY, "me", tensors())
    assert await waiting


async def test_waiting_ends_with_the_time_given(store: EmbeddingStore) -> None:
    await store.reserve(KEY, "me", 100)
    assert not await store.wait(KEY, timeout_s=0.05)


async def test_two_writers_of_one_key_both_succeed(store: EmbeddingStore) -> None:
    await asyncio.gather(publish(store, KEY, "one", tensors()), publish(store, KEY, "two", tensors()))
    assert equal(await store.get(KEY), tensors())


async def test_every_key_expires(store: EmbeddingStore, redis: Redis) -> None:
    await publish(store, KEY, "me", tensors())
    await store.reserve(OTHER, "me", 10)
    assert all([await redis.ttl(key) > 0 for key in await redis.keys()])


Damage = Callable[[bytes], bytes]
HEAD_DAMAGE: dict[str, Damage] = {
    "truncated header": lambda value: value[:60],
    "truncated data": lambda value: value[:-1],
    "appended": lambda value: value + b"x",
    "random": lambda _: bytes(range(256)) * 20,
    "empty": lambda _: b"",
    "short": lambda _: b"x",
    "pickle": lambda _: pickle.dumps({"embeddings": [1, 2]}),
    "huge header": lambda value: value[:32] + b"\xff" * 8 + value[40:],
    "another key": lambda _: bytes(codec.pack(OTHER, tensors())),
    "one row fewer": lambda _: bytes(codec.pack(KEY, tensors(4))),
}
DATA_DAMAGE: dict[str, Damage] = {
    "flipped bit": lambda value: value[:-9] + bytes([value[-9] ^ 1]) + value[-8:],
    "wrong checksum": lambda value: bytes(32) + value[32:],
}


async def damage(store: EmbeddingStore, redis: Redis, how: Damage) -> None:
    await publish(store, KEY, "me", tensors())
    value = await redis.get(client.embedding_key(KEY))
    assert isinstance(value, bytes)
    await redis.set(client.embedding_key(KEY), how(value))


@pytest.mark.parametrize("name", [*HEAD_DAMAGE, *DATA_DAMAGE])
async def test_a_bad_value_is_counted_deleted_and_a_miss(store: EmbeddingStore, redis: Redis, name: str) -> None:
    await damage(store, redis, (HEAD_DAMAGE | DATA_DAMAGE)[name])
    assert await store.get(KEY, rows=5) is None
    assert store.counters.corrupt == 1
    assert await store.reserve(KEY, "me", 10) is Reservation.RESERVED


@pytest.mark.parametrize("name", list(HEAD_DAMAGE))
async def test_the_head_alone_shows_most_damage(store: EmbeddingStore, redis: Redis, name: str) -> None:
    await damage(store, redis, HEAD_DAMAGE[name])
    assert await store.size(KEY, rows=5) is None
    assert not await redis.exists(client.embedding_key(KEY))


async def test_a_good_value_that_replaced_a_bad_one_is_kept(store: EmbeddingStore) -> None:
    await publish(store, KEY, "me", tensors())
    await store._discard(KEY, b"x" * 100)
    assert equal(await store.get(KEY), tensors())


async def test_cancelled_reads_never_give_a_foreign_value(store: EmbeddingStore) -> None:
    keys = [f"{index:064x}" for index in range(40)]
    for rows, key in enumerate(keys, start=1):
        await publish(store, key, "me", tensors(rows))
    reads = [asyncio.create_task(store.get(key)) for key in keys]
    await asyncio.sleep(0.001)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    assert [equal(await store.get(key), tensors(rows)) for rows, key in enumerate(keys, start=1)] == [True] * 40
    assert store.counters.corrupt == 0


async def test_a_full_server_counts_a_write_error() -> None:
    with start_valkey("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as url:
        link = connect(url)
        store = EmbeddingStore(link)
        with pytest.raises(UnavailableError):
            await publish(store, KEY, "me", {"embeddings": torch.zeros(1000, 1000)})
        assert store.counters.write_errors == 1
        await link.aclose()


async def test_g17_what_the_server_does_not_take_is_refused_here() -> None:
    with start_valkey("--proto-max-bulk-len", "1mb") as url:
        link = connect(url)
        store = EmbeddingStore(link)
        assert not await publish(store, KEY, "me", {"embeddings": torch.zeros(300, 1000)})
        assert (store.counters.refused, store.counters.write_errors) == (1, 0)
        assert await publish(store, OTHER, "me", {"embeddings": torch.zeros(200, 1000)})
        await link.aclose()


async def test_a_server_that_does_not_tell_its_limits_is_tried() -> None:
    with start_valkey() as url:
        link = connect(url)
        await link.acl_setuser("default", commands=["-config"])
        assert await publish(EmbeddingStore(link), KEY, "me", tensors())
        await link.aclose()


async def test_a_reader_renews_the_life_that_the_writer_gave(redis: Redis) -> None:
    await publish(EmbeddingStore(redis, ttl_s=100), KEY, "me", tensors())
    await redis.pexpire(client.embedding_key(KEY), 5000)
    assert equal(await EmbeddingStore(redis, None).get(KEY), tensors())
    assert 95 < await redis.ttl(client.embedding_key(KEY)) <= 100


async def test_a_reader_that_does_not_know_the_life_leaves_it(redis: Redis) -> None:
    await publish(EmbeddingStore(redis, ttl_s=100), KEY, "me", tensors())
    await redis.delete(f"{PREFIX}lives")
    await EmbeddingStore(redis, None).get(KEY)
    assert 0 < await redis.ttl(client.embedding_key(KEY)) <= 100


async def test_scripts_survive_a_restart_of_the_server(store: EmbeddingStore, redis: Redis) -> None:
    await store.reserve(KEY, "me", 10)
    await redis.script_flush()
    assert await store.reserve(KEY, "other", 10) is Reservation.BUSY
