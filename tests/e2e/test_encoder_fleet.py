"""Two encoder replicas on real Ray under load: single flight, cancellation, crashes, and how many there are."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from redis.asyncio import Redis

from common.models.tower import Tower
from common.store.client import embedding_key
from common.store.scripts import PREFIX
from tests.encoder_process import START_S, Encoder, encode, idle, load
from tests.encoding import Upload, upload
from tests.pictures import noise
from triptych.errors import UnavailableError
from triptych.v1 import encoder_pb2, worker_pb2, worker_pb2_grpc

pytestmark = pytest.mark.timeout(300)
SEEDS = itertools.count(5000)
# A third replica is started when much is waiting. Nothing is remembered, so what the store forgets is encoded again.
FLAGS = (
    *("--replicas", "2", "--max-replicas", "3", "--max-ongoing-images", "32", "--target-tokens", "40"),
    *("--upscale-delay-s", "0.5", "--downscale-delay-s", "0.5", "--health-period-s", "1"),
    *("--reservation-ttl-s", "2", "--embedding-memory", "1"),
)


@pytest.fixture(scope="module")
def encoder(checkpoint: Path, valkey_url: str) -> Iterator[Encoder]:
    # Ray's sockets need short paths.
    with tempfile.TemporaryDirectory(prefix="t") as path:
        process = Encoder(checkpoint, valkey_url, Path(path) / "0", *FLAGS)
        try:
            process.wait_for(": ready")
            yield process
        finally:
            process.close()


async def until(met: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not await met():  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.1)


async def describe(channel: grpc.aio.Channel) -> worker_pb2.WorkerInfo:
    return (await worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(worker_pb2.GetInfoRequest())).info


async def encoded(channel: grpc.aio.Channel) -> float:
    """Pictures encoded by all replicas, as the front's metrics have it."""
    address = (await describe(channel)).metrics_address
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://{address}/metrics")).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("triptych_encoder_pictures_"))


async def pictures(redis: Redis, tower: Tower, number: int, side: int = 90) -> list[Upload]:
    return [await upload(redis, tower, noise(side, side, seed=next(SEEDS))) for _ in range(number)]


def computed(answers: Sequence[list[encoder_pb2.EncodeResponse]]) -> int:
    return sum(one.outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED for answer in answers for one in answer)


async def no_reservations(redis: Redis) -> bool:
    return not await redis.keys(f"{PREFIX}owner:*") and not await redis.keys(f"{PREFIX}staged:*")


async def test_each_replica_says_what_it_is_and_uses(channel: grpc.aio.Channel, tower: Tower) -> None:
    async def both() -> bool:
        return len((await describe(channel)).replicas) == 2

    await until(both)
    for replica in (await describe(channel)).replicas:
        assert (replica.device, replica.weights_bytes) == ("cpu", tower.resident_bytes)
        assert replica.peak_memory_bytes >= replica.memory_bytes > tower.resident_bytes


async def test_64_requests_for_8_new_pictures_encode_8(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    many, before = await pictures(redis, tower, 8), await encoded(channel)
    answers = await asyncio.gather(*(encode(channel, many[index % 8].message) for index in range(64)))
    assert computed(answers) == 8

    async def reported() -> bool:
        return await encoded(channel) == before + 8

    await until(reported)


async def test_g02_many_pictures_with_duplicates_leave_no_waiter(
    channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    draw, fresh = random.Random(2), await pictures(redis, tower, 160)
    used: list[Upload] = []

    def request(count: int) -> list[Upload]:
        # Three in ten were asked for before; the same twice in a call is refused.
        found: dict[str, Upload] = {}
        while len(found) < count:
            one = draw.choice(used) if used and draw.random() < 0.3 else fresh.pop() if fresh else draw.choice(used)
            used.append(one)
            found[one.task.embedding_key] = one
        return list(found.values())

    requests = [request(draw.randint(1, 8)) for _ in range(64)]
    answers = await asyncio.gather(*(encode(channel, *(one.message for one in each)) for each in requests))
    assert [len(answer) for answer in answers] == [len(each) for each in requests]
    assert computed(answers) == len({one.task.embedding_key for one in used})
    await idle(channel)
    assert await no_reservations(redis)


async def test_k03_and_k04_cancelling_at_the_start_blocks_nothing(
    channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    many, draw = await pictures(redis, tower, 10), random.Random(3)
    for index in range(200):
        call = asyncio.create_task(encode(channel, many[index % 10].message))
        await asyncio.sleep(draw.choice((0, 0.002, 0.005, 0.01)))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await idle(channel)
    assert len(await encode(channel, *(one.message for one in many))) == 10


async def test_replicas_follow_the_load(
    encoder: Encoder, channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    def running(number: int) -> Callable[[], Awaitable[bool]]:
        async def there() -> bool:
            return len(encoder.replicas()) == number

        return there

    await until(running(2))
    many = [one.message for one in await pictures(redis, tower, 12, side=280)]

    async def load() -> None:
        # The same pictures again and again.
        while True:
            await asyncio.gather(*(encode(channel, one) for one in many))
            await redis.delete(*(embedding_key(one.embedding_key) for one in many))

    loading = [asyncio.create_task(load()) for _ in range(2)]
    try:
        await until(running(3))
    finally:
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
    await until(running(2))


async def test_a_replica_killed_midway_costs_no_request_and_few_encodes(
    encoder: Encoder, channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    many = await pictures(redis, tower, 8, side=280)
    calls = [asyncio.create_task(encode(channel, many[index % 8].message)) for index in range(64)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    encoder.replicas()[0].kill()
    answers = await asyncio.gather(*calls)
    assert [len(answer) for answer in answers] == [1] * 64
    assert computed(answers) <= 10
    assert all([await redis.exists(embedding_key(one.task.embedding_key)) for one in many])


async def test_k07_replicas_that_die_again_and_again_are_replaced(
    encoder: Encoder, channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    async def ask(one: Upload) -> None:
        # A clean refusal is as good as an answer, and asks to come again.
        with contextlib.suppress(UnavailableError):
            await encode(channel, one.message)

    async def any_there() -> bool:
        return bool(encoder.replicas())

    calls = []
    for _ in range(3):
        await until(any_there)
        calls += [asyncio.create_task(ask(one)) for one in await pictures(redis, tower, 4)]
        for replica in encoder.replicas()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                replica.kill()
    async with asyncio.timeout(START_S):
        await asyncio.gather(*calls)
    (last,) = await pictures(redis, tower, 1)
    assert computed([await encode(channel, last.message)]) == 1
    await idle(channel)


async def test_j06_sigterm_lets_a_running_call_end(
    encoder: Encoder, channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    many = await pictures(redis, tower, 12, side=280)
    call = asyncio.create_task(encode(channel, *(one.message for one in many)))

    async def accepted() -> bool:
        return call.done() or (await load(channel)).running_requests > 0

    await until(accepted)
    encoder.process.send_signal(signal.SIGTERM)
    assert len(await call) == 12
    assert await asyncio.to_thread(encoder.process.wait, START_S) == 0
