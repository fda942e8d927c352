"""What breaks shared stores in the field: cancelled commands, exhausted pools, odd replies, full keyspaces, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import torch
from redis.asyncio import Redis

from common.store.budget import Budget
from common.store.client import connect, embedding_key
from common.store.directory import Directory
from common.store.embeddings import EmbeddingStore
from common.store.images import ImageStore, StoredImage
from common.store.registry import Registration
from common.store.scripts import PREFIX
from tests.proxy import Proxy, running_proxy
from tests.stored import publish
from tests.valkey import ValkeyServer, run_valkey
from triptych.errors import UnavailableError
from triptych.v1.worker_pb2 import WORKER_ROLE_PREFILL, WorkerInfo

SCOPE = "5" * 64


def name(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with run_valkey() as server:
        yield server


@pytest.fixture
async def proxy(server: ValkeyServer) -> AsyncIterator[Proxy]:
    async with running_proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def redis(proxy: Proxy) -> AsyncIterator[Redis]:
    link = connect(proxy.url)
    yield link
    await link.aclose()


async def test_g09_cancelled_reads_leave_no_answer_for_the_next(redis: Redis, proxy: Proxy) -> None:
    store = EmbeddingStore(redis)
    for number in range(100):
        await publish(store, name(number), "me", {"embeddings": torch.full((3, 2), float(number))})
    proxy.delay_s = 0.05
    reads = [asyncio.create_task(store.get(name(number))) for number in range(50)]
    await asyncio.sleep(0.03)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    found = [await store.get(name(number), rows=3) for number in range(50, 100)]
    assert [value["embeddings"][0, 0].item() for value in found if value] == [float(n) for n in range(50, 100)]
    assert store.counters.corrupt == 0


async def test_g11_the_heartbeat_survives_an_exhausted_pool(redis: Redis, proxy: Proxy) -> None:
    info = WorkerInfo(instance_id="w", role=WORKER_ROLE_PREFILL, address="127.0.0.1:1")
    registration = Registration(redis, lambda: info, ttl_s=1.0, every_s=0.05)
    registration.start()
    proxy.delay_s = 0.6
    store = EmbeddingStore(redis)
    await asyncio.gather(*(store.get(name(number)) for number in range(200)), return_exceptions=True)
    proxy.delay_s = 0.0
    directory = Directory(redis)
    async with asyncio.timeout(20):
        while not directory.workers():
            await directory.poll()
            await asyncio.sleep(0.05)
    await registration.close()


@pytest.mark.parametrize(
    "reply", [b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", b"-LOADING busy\r\n"]
)
async def test_g18_after_an_error_reply_the_next_command_gets_its_own_answer(
    redis: Redis, proxy: Proxy, reply: bytes
) -> None:
    images = ImageStore(redis)
    for number in range(3):
        await images.put(SCOPE, StoredImage(name(number), name(number), 1, 1), b"file%d" % number)
    proxy.instead = [reply]
    with pytest.raises(UnavailableError):
        await images.load(SCOPE, name(0))
    await asyncio.sleep(1.1)
    assert [await images.load(SCOPE, name(number)) for number in range(3)] == [b"file0", b"file1", b"file2"]


async def test_g14_a_full_store_of_embeddings_leaves_the_rest_alone(redis: Redis) -> None:
    info = WorkerInfo(instance_id="w", role=WORKER_ROLE_PREFILL, address="127.0.0.1:1")
    registration, directory = Registration(redis, lambda: info), Directory(redis)
    await registration.announce()
    store = EmbeddingStore(redis, budget=Budget("refcount", 20_000))
    for number in range(100):
        await store.put(name(number), "me", bytes(1000), request="r" if number < 5 else "")
    await directory.poll()
    assert directory.workers() == (info,)
    assert all(
        [await redis.exists(f"{PREFIX}lease:{name(number)}", embedding_key(name(number))) == 2 for number in range(5)]
    )


async def test_g20_twenty_crashes_leave_one_entry(redis: Redis) -> None:
    directory = Directory(redis, grace_s=0.0)
    for number in range(20):
        info = WorkerInfo(instance_id=f"life{number}", role=WORKER_ROLE_PREFILL, address="127.0.0.1:1")
        await Registration(redis, lambda info=info: info, ttl_s=1.0).announce()  # type: ignore[misc]
    await directory.poll()
    assert [worker.instance_id for worker in directory.workers()] == ["life19"]
    await asyncio.sleep(1.1)
    last = WorkerInfo(instance_id="life20", role=WORKER_ROLE_PREFILL, address="127.0.0.1:1")
    await Registration(redis, lambda: last, ttl_s=60).announce()
    assert len(await redis.keys("triptych:{workers}:*")) == 2


async def test_d10_hundreds_of_pictures_never_pass_the_cap(redis: Redis) -> None:
    store = EmbeddingStore(redis, budget=Budget("lru", 50_000))
    for number in range(500):
        await store.put(name(number), "me", bytes(777))
        assert store.counters.bytes <= 50_000
    held = [await redis.strlen(key) for key in await redis.keys(f"{PREFIX}value:*")]
    assert sum(held) == store.counters.bytes == 64 * 777


async def test_a_crash_between_the_steps_of_a_write_leaves_only_what_expires(redis: Redis) -> None:
    await redis.set(f"{PREFIX}staged:dead", b"x" * 100, px=300)
    store = EmbeddingStore(redis, budget=Budget("lru", 1000))
    await store.put(name(0), "me", bytes(1000))
    await asyncio.sleep(0.4)
    assert await redis.keys(f"{PREFIX}staged:*") == []
    assert (await store.account()).bytes == 1000
