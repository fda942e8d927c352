"""What breaks encoders and their caches in the field: callers that leave, refused requests, caches that thrash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
import torch
from redis.asyncio import Redis

from common.models.tower import Prepared, Tower
from common.models.vision import Features
from common.store.client import connect
from common.store.embeddings import EmbeddingStore
from common.store.scripts import PREFIX
from tests.encoding import upload
from tests.fault.rig import Rig, open_rig, picture
from tests.fault.test_encoder_handover import Front
from tests.pictures import noise
from triptych.v1 import encoder_pb2


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[Redis]:
    link = connect(valkey_url)
    await link.flushdb()
    yield link
    await link.aclose()


async def test_k01_work_of_callers_that_left_is_not_done(
    checkpoint: Path, redis: Redis, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = Tower.load(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    front = Front(checkpoint, valkey_url, max_batch_tokens=1)
    await front.start()
    many = [await upload(redis, tower, noise(60, 60, seed=seed)) for seed in range(100)]
    encode, goes_on = Tower.encode, threading.Event()

    def slow(self: Tower, batch: Sequence[Prepared]) -> list[Features]:
        goes_on.wait(60)
        return encode(self, batch)

    async def impatient(message: encoder_pb2.EncodeImage) -> None:
        call = front.stub.Encode(encoder_pb2.EncodeRequest(images=[message]), timeout=0.2)
        async for _ in call:
            pass

    monkeypatch.setattr(Tower, "encode", slow)
    ends = await asyncio.gather(*(impatient(one.message) for one in many), return_exceptions=True)
    assert {end.code() for end in ends if isinstance(end, grpc.aio.AioRpcError)} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    async with asyncio.timeout(60):
        while load_of(front) != (0, 0, 0):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.01)
    goes_on.set()
    last = await upload(redis, tower, noise(60, 60, seed=100))
    assert (await front.encode(last)).outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED
    # The one that the tower had begun, and the last.
    assert front.replica.record.counts.pictures <= 2
    assert load_of(front) == (0, 0, 0)
    await front.close()


def load_of(front: Front) -> tuple[int, int, int]:
    """Calls and tokens that the front has accepted, and tokens that its replica works on."""
    return front.load.calls, front.load.tokens, front.replica.record.pending.tokens


async def value_bytes(rig: Rig, redis: Redis) -> int:
    await rig.say(picture(1000))
    return (await EmbeddingStore(redis).account()).bytes


@pytest.mark.timeout(240)
async def test_e01_and_e02_a_refused_request_and_a_thrashing_cache_break_nothing(redis: Redis, valkey_url: str) -> None:
    async with open_rig(valkey_url) as rig:
        size = await value_bytes(rig, redis)
    await redis.flushdb()
    async with open_rig(valkey_url, embedding_budget=4 * size, embedding_memory=1) as rig:
        assert (await rig.ask(picture(1), text="word " * 20_000)).status_code == 400
        assert (await rig.ask(picture(1))).status_code == 200
        answers = await asyncio.gather(*(rig.ask(picture(index % 8)) for index in range(32)))
        assert [answer.status_code for answer in answers] == [200] * 32
        assert (await EmbeddingStore(redis).account()).entries <= 4
        assert rig.replica.record.store.evictions + rig.replica.record.store.refused > 0
        assert not await redis.keys(f"{PREFIX}owner:*")
