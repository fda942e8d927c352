"""Uploaded pictures in a real Valkey."""

from __future__ import annotations

import asyncio
import json

import pytest
from redis.asyncio import Redis

from common.store.client import blob_key, connect, end_task, reachable, record_key, store_errors
from common.store.images import ImageStore, StoredImage
from tests.valkey import ValkeyServer, free_port, run_valkey, start_valkey
from triptych.errors import ConfigError, UnavailableError

PICTURE = StoredImage(digest="d" * 64, image_id="e" * 64, width=31, height=17)


@pytest.mark.parametrize("name", [PICTURE.digest, PICTURE.image_id])
async def test_a_stored_picture_is_found_under_both_names(redis: Redis, name: str) -> None:
    store = ImageStore(redis)
    await store.put("scope", PICTURE, b"bytes")
    assert await store.find("scope", [name]) == {name: PICTURE}


async def test_bytes_come_back(redis: Redis) -> None:
    store = ImageStore(redis)
    await store.put("scope", PICTURE, b"\x00\xffbytes")
    assert await store.load("scope", PICTURE.image_id) == b"\x00\xffbytes"


async def test_another_scope_sees_nothing(redis: Redis) -> None:
    store = ImageStore(redis)
    await store.put("scope", PICTURE, b"bytes")
    assert await store.find("other", [PICTURE.digest]) == {}
    assert await store.load("other", PICTURE.image_id) is None


async def test_a_record_without_its_bytes_is_unknown(redis: Redis) -> None:
    store = ImageStore(redis)
    await store.put("scope", PICTURE, b"bytes")
    await redis.delete(blob_key("scope", PICTURE.image_id))
    assert await store.find("scope", [PICTURE.digest]) == {}


async def test_only_the_known_ones_are_found(redis: Redis) -> None:
    store = ImageStore(redis)
    await store.put("scope", PICTURE, b"bytes")
    assert set(await store.find("scope", ["a" * 64, PICTURE.digest, PICTURE.digest])) == {PICTURE.digest}


async def test_no_question_needs_no_answer(redis: Redis) -> None:
    assert await ImageStore(redis).find("scope", []) == {}


@pytest.mark.parametrize(
    "value",
    [
        b"\x80not json",
        b"[]",
        json.dumps({"scope": "scope", "digest": "d" * 64}).encode(),
        json.dumps({"scope": "scope", "digest": "d" * 64, "image_id": "e", "width": "3", "height": 1}).encode(),
        json.dumps({"scope": "other", "digest": "d" * 64, "image_id": "e", "width": 3, "height": 1}).encode(),
        json.dumps({"scope": "scope", "digest": "f" * 64, "image_id": "e", "width": 3, "height": 1}).encode(),
    ],
)
async def test_a_value_that_is_no_record_of_that_name_is_a_miss(redis: Redis, value: bytes) -> None:
    await redis.set(record_key("scope", "d" * 64), value)
    await redis.set(blob_key("scope", "e"), b"bytes")
    assert await ImageStore(redis).find("scope", ["d" * 64]) == {}


async def test_every_key_expires(redis: Redis) -> None:
    await ImageStore(redis, ttl_s=100).put("scope", PICTURE, b"bytes")
    lives = [await redis.ttl(key) for key in await redis.keys()]
    assert len(lives) == 3
    assert all(0 < life <= 100 for life in lives)


async def test_use_renews_the_life_of_record_and_bytes(redis: Redis) -> None:
    await ImageStore(redis, ttl_s=100).put("scope", PICTURE, b"bytes")
    await ImageStore(redis, ttl_s=1000).find("scope", [PICTURE.digest])
    assert await redis.ttl(blob_key("scope", PICTURE.image_id)) > 100
    assert await redis.ttl(record_key("scope", PICTURE.digest)) > 100


async def test_a_server_that_is_not_there_is_unavailable_with_a_retry_delay() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(UnavailableError) as caught:
        await ImageStore(client).load("scope", "e" * 64)
    assert caught.value.retry_after_s
    await client.aclose()


async def test_a_frozen_server_is_given_up_after_one_timeout() -> None:
    with run_valkey() as server:
        client = connect(server.url)
        assert await reachable(client)
        server.freeze()
        async with asyncio.timeout(5):
            assert not await reachable(client)
        server.thaw()
        await client.aclose()


async def test_a_full_server_is_unavailable_and_writing_resumes_without_a_restart() -> None:
    with start_valkey("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as url:
        client = connect(url)
        store = ImageStore(client)
        with pytest.raises(UnavailableError):
            await _fill(store)
        await client.config_set("maxmemory", "100mb")
        await store.put("scope", PICTURE, b"bytes")
        assert await store.load("scope", PICTURE.image_id) == b"bytes"
        await client.aclose()


async def _fill(store: ImageStore) -> None:
    for index in range(20):
        await store.put("scope", StoredImage(f"{index}", f"{index}", 1, 1), b"x" * 500_000)


async def test_a_restarted_server_is_used_again() -> None:
    server = ValkeyServer()
    try:
        server.start()
        client = connect(server.url)
        assert await reachable(client)
        server.stop()
        assert not await reachable(client)
        server.start()
        assert await reachable(client)
        await client.aclose()
    finally:
        server.close()


async def test_cancelled_reads_leave_no_answer_for_the_next_caller(redis: Redis) -> None:
    store = ImageStore(redis)
    for index in range(50):
        await store.put("scope", StoredImage(f"d{index}", f"i{index}", 1, 1), b"%d" % index * 1000)
    reads = [asyncio.create_task(store.load("scope", f"i{index}")) for index in range(25)]
    await asyncio.sleep(0)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    answers = [await store.load("scope", f"i{index}") for index in range(50)]
    assert answers == [b"%d" % index * 1000 for index in range(50)]


def test_a_malformed_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        connect("http://127.0.0.1/0")


async def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with store_errors():
            raise ZeroDivisionError


async def test_a_cancelled_call_ends(redis: Redis) -> None:
    calls = [asyncio.create_task(ImageStore(redis).find("scope", ["a" * 64])) for _ in range(200)]
    await asyncio.sleep(0.002)
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    # Cancelled, served just before, or unlucky on a busy machine; but all of them.
    assert {type(each) for each in results} <= {asyncio.CancelledError, dict, UnavailableError}


async def test_a_stubborn_task_is_ended() -> None:
    swallowed = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end_task(task)
    assert swallowed.is_set()
