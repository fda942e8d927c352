"""Redis stopped, frozen, full, flushed, slow or talking nonsense: answers go on, and nothing must be restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from common.store import codec
from common.store.client import connect
from common.store.embeddings import EmbeddingStore
from tests.fault.rig import PATIENCE_S, Rig, open_rig, picture
from tests.proxy import Proxy, running_proxy
from tests.valkey import ValkeyServer, run_valkey

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with run_valkey() as server:
        yield server


@pytest.fixture
async def redis(server: ValkeyServer) -> AsyncIterator[Redis]:
    link = connect(server.url)
    yield link
    await link.aclose()


@pytest.fixture
async def rig(server: ValkeyServer) -> AsyncIterator[Rig]:
    async with open_rig(server.url) as rig:
        yield rig


async def back_to_normal(rig: Rig, redis: Redis, first: int) -> None:
    """New pictures are stored again; the gates may need a moment to notice."""
    store = EmbeddingStore(redis)
    async with asyncio.timeout(PATIENCE_S):
        for seed in range(first, first + 100):
            before = (await store.account()).entries
            await rig.say(picture(seed))
            if (await store.account()).entries > before:
                return
            await asyncio.sleep(0.2)


async def until_degraded(rig: Rig, word: str) -> None:
    """Return when a complaint has `word` in it, or, for "", when there is none."""
    async with asyncio.timeout(PATIENCE_S):
        while not told(await rig.degraded(), word):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.05)


def told(complaints: list[str], word: str) -> bool:
    return any(word in complaint for complaint in complaints) if word else not complaints


async def test_stopped(rig: Rig, server: ValkeyServer, redis: Redis) -> None:
    known = await rig.say(picture(1))
    server.stop()
    assert await rig.say() is not None
    await until_degraded(rig, "Redis does not answer")
    assert await rig.say(picture(1)) == known
    during = await rig.say(picture(2))
    assert rig.desk.embeddings.size_bytes > 0
    server.start()
    await back_to_normal(rig, redis, 100)
    assert await rig.say(picture(2)) == during


async def test_frozen(rig: Rig, server: ValkeyServer, redis: Redis) -> None:
    known = await rig.say(picture(1))
    server.freeze()
    try:
        assert await rig.say() is not None
        assert await rig.say(picture(1)) == known
        during = await rig.say(picture(2))
    finally:
        server.thaw()
    await back_to_normal(rig, redis, 100)
    assert await rig.say(picture(2)) == during


async def test_full_for_longer_than_a_registration_lives(rig: Rig, redis: Redis) -> None:
    await redis.config_set("maxmemory", 1)
    for seed in range(20):
        assert (await rig.ask(picture(seed))).status_code == 200
        await asyncio.sleep(0.3)
    assert rig.replica.record.store.write_errors > 0
    await redis.config_set("maxmemory", 0)
    before = rig.replica.record.store.write_errors
    await back_to_normal(rig, redis, 100)
    assert rig.replica.record.store.write_errors == before


async def test_flushed_between_turns(rig: Rig, redis: Redis) -> None:
    before = await rig.say(picture(1))
    await redis.flushall()
    assert await rig.say(picture(1)) == before
    assert (await EmbeddingStore(redis).account()).entries == 1


async def test_started_late_and_restarted_empty(
    server: ValkeyServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """L17."""
    server.stop()
    coming = asyncio.create_task(start_once_missed(server, caplog))
    async with open_rig(server.url) as rig:
        await coming
        before = await rig.say(picture(1))
        server.stop()
        server.start()
        assert await rig.say(picture(1)) == before
        await back_to_normal(rig, redis, 100)


async def start_once_missed(server: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """Start it when the last of all processes, the router, waits for it."""
    async with asyncio.timeout(PATIENCE_S):
        while "keeping the last view of the cluster" not in caplog.text:  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.05)
    server.start()


@pytest.fixture
async def proxy(server: ValkeyServer) -> AsyncIterator[Proxy]:
    async with running_proxy(server.port) as proxy:
        yield proxy


async def test_slow(proxy: Proxy, redis: Redis) -> None:
    async with open_rig(proxy.url) as rig:
        proxy.delay_s = 0.15
        assert await rig.say() is not None
        slow = await rig.say(picture(1))
        proxy.delay_s = 0.0
        await back_to_normal(rig, redis, 100)
        assert await rig.say(picture(1)) == slow


async def test_slower_than_anybody_waits(proxy: Proxy, redis: Redis) -> None:
    async with open_rig(proxy.url) as rig:
        proxy.delay_s = 30.0
        assert await rig.say() is not None
        during = await rig.say(picture(1))
        proxy.delay_s = 0.0
        await back_to_normal(rig, redis, 100)
        assert await rig.say(picture(1)) == during


async def test_garbage(proxy: Proxy, redis: Redis) -> None:
    async with open_rig(proxy.url) as rig:
        known = await rig.say(picture(1))
        proxy.garbage = True
        assert await rig.say() is not None
        assert await rig.say(picture(1)) == known
        during = await rig.say(picture(2))
        proxy.garbage = False
        await back_to_normal(rig, redis, 100)
        assert await rig.say(picture(2)) == during


async def test_e11_writes_that_fail_do_not_stay_quiet(rig: Rig, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.say(picture(1))
    assert rig.replica.record.store.write_errors == 0
    assert await redis.dbsize() > 0
    with monkeypatch.context() as broken:
        broken.setattr(codec, "_NAMES", {})
        assert (await rig.ask(picture(2))).status_code == 500
    assert rig.replica.record.store.write_errors > 0
    await until_degraded(rig, "write(s) to the embedding store failed")
    await rig.say(picture(3))
    await until_degraded(rig, "")
