"""The encoder as a process: real Ray, real Valkey, real gRPC. Ray takes seconds to start, so tests share it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import psutil
import pytest
import torch
from redis.asyncio import Redis

from common.models.tower import Tower
from common.store.directory import Directory
from common.store.embeddings import EmbeddingStore
from tests.collector import CALLER, Collector, open_collector
from tests.encoder_process import START_S, Encoder, encode, idle, load
from tests.encoding import describe, upload
from tests.hosted_encoder import hosted_encoder, hosted_environment
from tests.pictures import noise
from tests.valkey import free_port
from triptych.channel import open_channel
from triptych.errors import ImagesNotFoundError, InvalidArgumentError, UnavailableError
from triptych.v1 import encoder_pb2, worker_pb2, worker_pb2_grpc

pytestmark = pytest.mark.timeout(300)
SEEDS = itertools.count(1000)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    # Not pytest's: below it lie Ray's sockets, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="t") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with open_collector() as opened:
        yield opened


@pytest.fixture(scope="module")
def hosting(checkpoint: Path, valkey_url: str) -> dict[str, str]:
    return hosted_environment(model=str(checkpoint), redis_url=valkey_url, port="0")


@pytest.fixture(scope="module")
def encoder(
    checkpoint: Path, valkey_url: str, directory: Path, collector: Collector, hosting: dict[str, str]
) -> Iterator[Encoder]:
    # Spans leave the processes only at their end.
    flags, delay = ("--otlp-endpoint", collector.endpoint), {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
    process = Encoder(checkpoint, valkey_url, directory / "0", *flags, **delay, **hosting)
    try:
        process.wait_for(": ready")
        yield process
    finally:
        process.close()


async def test_an_encoded_picture_is_what_the_tower_gives(
    channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    (response,) = await encode(channel, one.message)
    assert response.outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED
    stored = await EmbeddingStore(redis).get(one.task.embedding_key, rows=one.task.tokens)
    expected = tower.encode([tower.preprocess(one.image)])[0]
    assert stored is not None and torch.equal(stored["embeddings"], expected["embeddings"])


async def test_the_second_call_hits(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    (first,), (second,) = await encode(channel, one.message), await encode(channel, one.message)
    assert (second.outcome, second.encode_ns) == (encoder_pb2.ENCODE_OUTCOME_HIT, 0)
    assert first.size_bytes == second.size_bytes


async def test_calls_at_once_compute_once(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    answers = await asyncio.gather(*(encode(channel, one.message) for _ in range(6)))
    outcomes = [response.outcome for (response,) in answers]
    assert outcomes.count(encoder_pb2.ENCODE_OUTCOME_COMPUTED) == 1
    assert encoder_pb2.ENCODE_OUTCOME_UNSPECIFIED not in outcomes


async def test_every_picture_of_a_call_is_answered(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    many = [await upload(redis, tower, noise(90, 70, seed=next(SEEDS))) for _ in range(9)]
    responses = await encode(channel, *(one.message for one in many))
    assert {response.embedding_key for response in responses} == {one.task.embedding_key for one in many}
    assert await load(channel) == worker_pb2.GetLoadResponse()


async def test_missing_bytes_are_a_typed_error_without_a_stack_trace(channel: grpc.aio.Channel, tower: Tower) -> None:
    one = describe(tower, noise(90, 70, seed=next(SEEDS)))
    with pytest.raises(ImagesNotFoundError) as caught:
        await encode(channel, one.message)
    assert caught.value.digests == (one.task.image_id,)
    assert "Traceback" not in caught.value.message


async def test_a_bad_field_is_named(channel: grpc.aio.Channel, tower: Tower) -> None:
    message = describe(tower, noise(90, 70)).message
    message.embedding_key = "x"
    with pytest.raises(InvalidArgumentError) as caught:
        await encode(channel, message)
    assert caught.value.param == "images[0].embedding_key"


async def test_cancelled_calls_leave_no_load(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    many = [await upload(redis, tower, noise(90, 70, seed=next(SEEDS))) for _ in range(8)]
    calls = [asyncio.create_task(encode(channel, one.message)) for one in many]
    await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await idle(channel)
    assert len(await encode(channel, *(one.message for one in many))) == 8


async def test_the_registry_says_what_it_is(encoder: Encoder, redis: Redis, tower: Tower) -> None:
    directory = Directory(redis)
    async with asyncio.timeout(30):
        while not directory.workers():
            await directory.poll()
    (info,) = directory.workers()
    assert (info.role, info.address) == (worker_pb2.WORKER_ROLE_ENCODER, encoder.address)
    assert info.model_fingerprint == tower.fingerprint
    assert info.preprocessing_fingerprint == tower.family.preprocessing_fingerprint
    assert (info.model, info.dtype) == ("qwen2_vl", "float32")


async def test_a_killed_replica_is_replaced(
    encoder: Encoder, channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    """K06: the call comes at once and waits for the next one."""
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    for replica in encoder.replicas():
        replica.kill()
    (response,) = await encode(channel, one.message)
    assert response.outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED


async def test_the_front_stays_without_torch(encoder: Encoder) -> None:
    assert not any("torch" in mapped.path for mapped in encoder.process.memory_maps())


@pytest.fixture
def start() -> Iterator[list[Encoder]]:
    started: list[Encoder] = []
    yield started
    for process in started:
        process.close()


def without_weights(checkpoint: Path, broken: Path) -> Path:
    broken.mkdir()
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    return broken


async def test_k09_a_broken_checkpoint_stops_with_a_sentence_and_others_keep_serving(
    start: list[Encoder],
    directory: Path,
    checkpoint: Path,
    valkey_url: str,
    channel: grpc.aio.Channel,
    redis: Redis,
    tower: Tower,
) -> None:
    broken = without_weights(checkpoint, directory / "broken")
    start.append(Encoder(broken, valkey_url, directory / "2"))
    assert await asyncio.to_thread(start[0].process.wait, START_S) == 1
    assert start[0].text().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in start[0].text()
    assert list(start[0].temporary.iterdir()) == []
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    assert len(await encode(channel, one.message)) == 1
    view = Directory(redis)
    await view.poll()
    assert len(view.workers()) == 1


@pytest.fixture
def hosted(encoder: Encoder, hosting: dict[str, str]) -> Iterator[None]:
    """On the Ray of the other one, because another Ray takes seconds."""
    (ray_directory,) = encoder.temporary.glob("ray-*")
    with hosted_encoder(ray_directory, hosting):
        yield


async def test_its_front_may_be_a_deployment_of_ray_serve(
    hosted: None, encoder: Encoder, redis: Redis, tower: Tower
) -> None:
    """What a KubeRay operator runs: it encodes, and knows its replica."""
    directory = Directory(redis)
    async with asyncio.timeout(START_S):
        while not (front := next((one for one in directory.workers() if one.address != encoder.address), None)):
            await directory.poll()
        one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
        async with open_channel(front.address) as channel:
            (response,) = await encode(channel, one.message)
            while not (replicas := await replicas_of(channel)):  # noqa: ASYNC110 nothing tells us
                await asyncio.sleep(0.1)
    assert response.outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED
    assert [replica.weights_bytes for replica in replicas] == [tower.resident_bytes]


async def replicas_of(channel: grpc.aio.Channel) -> Sequence[worker_pb2.ReplicaInfo]:
    return (await worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(worker_pb2.GetInfoRequest())).info.replicas


async def test_taken_down_it_leaves_the_registry(encoder: Encoder, redis: Redis) -> None:
    directory = Directory(redis)
    await directory.poll()
    assert [worker.address for worker in directory.workers()] == [encoder.address]


async def test_a_call_brings_its_trace(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    """What became of it is seen when the process has ended."""
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    assert len(await encode(channel, one.message, **CALLER)) == 1


async def test_after_drain_no_new_work_is_taken(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    stub = worker_pb2_grpc.WorkerServiceStub(channel)
    await stub.Drain(worker_pb2.DrainRequest())
    await stub.Drain(worker_pb2.DrainRequest())
    assert (await stub.GetInfo(worker_pb2.GetInfoRequest())).info.draining
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    with pytest.raises(UnavailableError, match="draining"):
        await encode(channel, one.message)


async def test_sigterm_leaves_nothing_behind(encoder: Encoder, redis: Redis) -> None:
    processes = encoder.process.children(recursive=True)
    assert processes
    assert encoder.stop() == 0, encoder.text()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert list(encoder.temporary.iterdir()) == []
    assert "Traceback" not in encoder.text()
    directory = Directory(redis)
    await directory.poll()
    assert directory.workers() == ()


def test_the_trace_went_on_in_the_replica_which_sent_its_spans_before_it_ended(collector: Collector) -> None:
    assert collector.names("triptych-encoder") == {"encode call", "encode picture"}
    assert collector.names("triptych-encoder-replica") == {"replica", "preprocess", "batch wait", "forward"}


def test_a_directory_without_a_model_stops_at_once_with_a_sentence(
    start: list[Encoder], directory: Path, valkey_url: str
) -> None:
    start.append(Encoder(directory, valkey_url, directory / "1"))
    assert start[0].process.wait(START_S) == 1
    assert start[0].text().splitlines()[-1] == f"error: the model directory {directory} has no config.json"


def test_it_waits_for_redis_and_can_be_stopped_meanwhile(
    start: list[Encoder], directory: Path, checkpoint: Path
) -> None:
    """L17."""
    start.append(Encoder(checkpoint, f"redis://127.0.0.1:{free_port()}/0", directory / "3"))
    start[0].wait_for("waiting for Redis")
    assert start[0].stop() == 0
