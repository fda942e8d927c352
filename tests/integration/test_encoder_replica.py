"""One replica in this process, with a real tower and a real Valkey."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from redis.asyncio import Redis

from common.models.tower import Prepared, Tower
from common.models.vision import Features
from common.store.client import blob_key, embedding_key, reservation_key
from common.store.embeddings import EmbeddingStore, Reservation
from services.encoder.pictures import PictureSource
from services.encoder.replica import COMPUTED, HIT, JOINED, Replica
from services.encoder.settings import EncoderSettings
from services.encoder.work import Task
from tests.checkpoints import FAMILIES, CheckpointCache
from tests.encoding import SCOPE, describe, png, upload
from tests.pictures import noise
from tests.stored import publish
from triptych.errors import FailedPreconditionError, ImagesNotFoundError, InternalError, InvalidImageError

NewReplica = Callable[..., Replica]


@pytest.fixture
def new_replica(checkpoint: Path, redis: Redis) -> NewReplica:
    def build(*flags: str, model: Path = checkpoint) -> Replica:
        return Replica(EncoderSettings.load(["--model", str(model), *flags]).for_replica(), redis)

    return build


@pytest.fixture
def replica(new_replica: NewReplica) -> Replica:
    return new_replica()


async def unreserved(redis: Redis, key: str) -> bool:
    return not await redis.exists(reservation_key(key))


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_stored_embedding_is_what_the_tower_gives(
    checkpoints: CheckpointCache, redis: Redis, new_replica: NewReplica, family: str
) -> None:
    model = checkpoints.get(family)
    tower = Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))
    one = await upload(redis, tower, noise(90, 70))
    await new_replica(model=model).ensure(one.task)
    stored = await EmbeddingStore(redis).get(one.task.embedding_key, rows=one.task.tokens)
    expected = tower.encode([tower.preprocess(one.image)])[0]
    assert stored is not None and stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], expected[name]) for name in expected)


async def test_the_first_time_computes_and_the_second_hits(redis: Redis, tower: Tower, replica: Replica) -> None:
    one = await upload(redis, tower, noise(90, 70))
    first, second = await replica.ensure(one.task), await replica.ensure(one.task)
    assert (first.outcome, second.outcome) == (COMPUTED, HIT)
    assert first.encode_ns > 0 and second.encode_ns == 0
    assert first.size_bytes == second.size_bytes == await redis.strlen(embedding_key(one.task.embedding_key))


def with_another_mean(checkpoint: Path, copy: Path) -> Path:
    shutil.copytree(checkpoint, copy)
    file = copy / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "image_mean": [0.1, 0.2, 0.3]}))
    return copy


async def test_a10_another_image_processor_setting_does_not_hit(
    checkpoint: Path, tmp_path: Path, redis: Redis, tower: Tower, new_replica: NewReplica
) -> None:
    model = with_another_mean(checkpoint, tmp_path / "other")
    other = Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))
    for a_tower, replica in ((tower, new_replica()), (other, new_replica(model=model))):
        one = await upload(redis, a_tower, noise(90, 70))
        assert (await replica.ensure(one.task)).outcome == COMPUTED


async def test_many_at_once_compute_once_across_replicas(
    redis: Redis, tower: Tower, new_replica: NewReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await upload(redis, tower, noise(90, 70))
    replicas = [new_replica(), new_replica()]
    prepare = PictureSource.prepare

    async def late(self: PictureSource, task: Task) -> Prepared:
        while sum(replica.record.store.waits for replica in replicas) < 7:  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.01)
        return await prepare(self, task)

    monkeypatch.setattr(PictureSource, "prepare", late)
    done = await asyncio.gather(*(replicas[index % 2].ensure(one.task) for index in range(8)))
    assert sorted(answer.outcome for answer in done) == [COMPUTED] + [JOINED] * 7


async def test_pictures_of_several_sizes_share_a_batch_and_stay_exact(
    redis: Redis, tower: Tower, replica: Replica
) -> None:
    pictures = [await upload(redis, tower, noise(60 + 28 * index, 70, seed=index)) for index in range(5)]
    await asyncio.gather(*(replica.ensure(one.task) for one in pictures))
    for one in pictures:
        stored = await EmbeddingStore(redis).get(one.task.embedding_key)
        expected = tower.encode([tower.preprocess(one.image)])[0]["embeddings"]
        assert stored is not None
        torch.testing.assert_close(stored["embeddings"], expected, rtol=1e-5, atol=1e-5)


async def test_missing_bytes_are_named_and_the_reservation_is_given_up(
    redis: Redis, tower: Tower, replica: Replica
) -> None:
    one = describe(tower, noise(90, 70))
    with pytest.raises(ImagesNotFoundError) as caught:
        await replica.ensure(one.task)
    assert caught.value.digests == (one.task.image_id,)
    assert await unreserved(redis, one.task.embedding_key)


async def test_another_scope_does_not_have_the_bytes(redis: Redis, tower: Tower, replica: Replica) -> None:
    await upload(redis, tower, noise(90, 70))
    with pytest.raises(ImagesNotFoundError):
        await replica.ensure(describe(tower, noise(90, 70), scope="6" * 64).task)


async def test_another_size_than_recorded_is_refused(redis: Redis, tower: Tower, replica: Replica) -> None:
    one = await upload(redis, tower, noise(90, 70))
    with pytest.raises(InvalidImageError, match="90x70"):
        await replica.ensure(dataclasses.replace(one.task, width=70, height=90))


async def test_another_number_of_tokens_means_two_parts_do_not_fit(
    redis: Redis, tower: Tower, replica: Replica
) -> None:
    one = await upload(redis, tower, noise(90, 70))
    with pytest.raises(FailedPreconditionError):
        await replica.ensure(dataclasses.replace(one.task, tokens=one.task.tokens + 1))


async def test_bytes_of_another_picture_count_as_missing(redis: Redis, tower: Tower, replica: Replica) -> None:
    one = await upload(redis, tower, noise(90, 70))
    await redis.set(blob_key(SCOPE, one.task.image_id), png(noise(90, 70, seed=9)))
    with pytest.raises(ImagesNotFoundError):
        await replica.ensure(one.task)


async def test_damaged_bytes_fail_alone(redis: Redis, tower: Tower, replica: Replica) -> None:
    good, bad = await upload(redis, tower, noise(90, 70)), await upload(redis, tower, noise(90, 70, seed=1))
    await redis.set(blob_key(SCOPE, bad.task.image_id), png(bad.image)[:-40])
    results = await asyncio.gather(replica.ensure(good.task), replica.ensure(bad.task), return_exceptions=True)
    assert isinstance(results[1], InvalidImageError)
    assert not isinstance(results[0], BaseException)


async def test_a_picture_that_spoils_the_tower_fails_alone(
    redis: Redis, tower: Tower, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [await upload(redis, tower, noise(90, 70 + 28 * index)) for index in range(3)]
    encode, poison = Tower.encode, tower.preprocess(pictures[1].image).pixels

    def spoilt(self: Tower, batch: Sequence[Prepared]) -> list[Features]:
        results = encode(self, batch)
        for prepared, features in zip(batch, results, strict=True):
            if torch.equal(prepared.pixels, poison):
                features["embeddings"][0, 0] = torch.nan
        return results

    monkeypatch.setattr(Tower, "encode", spoilt)
    results = await asyncio.gather(*(replica.ensure(one.task) for one in pictures), return_exceptions=True)
    assert [isinstance(result, InternalError) for result in results] == [False, True, False]
    assert not await redis.exists(embedding_key(pictures[1].task.embedding_key))


async def test_the_work_of_a_dead_replica_is_taken_over(redis: Redis, tower: Tower, replica: Replica) -> None:
    one = await upload(redis, tower, noise(90, 70))
    await EmbeddingStore(redis).reserve(one.task.embedding_key, "dead", 0.2)
    assert (await replica.ensure(one.task)).outcome == COMPUTED


@pytest.mark.parametrize("rows", [-1, 0])
async def test_a_bad_stored_value_is_computed_again(redis: Redis, tower: Tower, replica: Replica, rows: int) -> None:
    one = await upload(redis, tower, noise(90, 70))
    key = embedding_key(one.task.embedding_key)
    fewer = {"embeddings": torch.zeros(one.task.tokens - 1, 8)}
    await publish(EmbeddingStore(redis), one.task.embedding_key, "else", fewer)
    if rows == 0:
        await redis.set(key, b"garbage" * 100)
    assert (await replica.ensure(one.task)).outcome == COMPUTED


async def test_cancelling_gives_the_reservation_up(
    redis: Redis, tower: Tower, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await upload(redis, tower, noise(90, 70))
    entered = asyncio.Event()

    async def wait(*_: object) -> None:
        entered.set()
        await asyncio.sleep(60)

    monkeypatch.setattr("services.encoder.pictures.PictureSource.prepare", wait)
    call = asyncio.create_task(replica.ensure(one.task))
    await entered.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await unreserved(redis, one.task.embedding_key)


async def test_a_long_computation_keeps_its_reservation(
    redis: Redis, tower: Tower, new_replica: NewReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await upload(redis, tower, noise(90, 70))
    entered = asyncio.Event()

    async def wait(*_: object) -> None:
        entered.set()
        await asyncio.sleep(60)

    monkeypatch.setattr("services.encoder.pictures.PictureSource.prepare", wait)
    call = asyncio.create_task(new_replica("--reservation-ttl-s", "3").ensure(one.task))
    await entered.wait()
    left = await redis.pttl(reservation_key(one.task.embedding_key))
    async with asyncio.timeout(20):
        while (now := await redis.pttl(reservation_key(one.task.embedding_key))) <= left:
            left = now
            await asyncio.sleep(0.05)
    assert await EmbeddingStore(redis).reserve(one.task.embedding_key, "other", 10) is Reservation.BUSY
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_the_description_names_tower_and_preprocessing(tower: Tower, replica: Replica) -> None:
    description = replica.describe()
    assert description.model_fingerprint == tower.fingerprint
    assert description.preprocessing_fingerprint == tower.family.preprocessing_fingerprint
