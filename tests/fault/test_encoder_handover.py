"""Past the store: pixels to the encoder, embeddings to prefill, through a real gRPC front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from common.models.tower import Tower
from common.rpc.channels import Channels
from common.rpc.server import RpcServer
from common.store import codec
from common.store.client import connect
from common.store.embeddings import EmbeddingStore
from services.encoder.desk import Desk, picture_name
from services.encoder.load import Load
from services.encoder.replica import Replica
from services.encoder.servicer import FULL_NAME, EncoderServicer
from services.encoder.settings import EncoderSettings
from services.prefill.embeddings import EmbeddingSource
from services.router.running.pixels import Pixels
from tests.encoding import Upload, describe, png, upload
from tests.pictures import noise
from triptych.errors import ImagesNotFoundError, InvalidArgumentError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import encoder_pb2, encoder_pb2_grpc, prefill_pb2

KEY = "a" * 64
# Not a port that was free a while ago: another process may have it by now.
NOWHERE = "redis://127.0.0.1:1/0"


class Front:
    """An encoder front with one replica in this process, whose store is `url`."""

    def __init__(self, checkpoint: Path, url: str, **settings: object) -> None:
        self.redis = connect(url)
        self.desk, self.channels = Desk(), Channels()
        given = EncoderSettings.model_validate({"model": checkpoint, **settings})
        self.load = Load(given.max_pending_tokens)
        self.replica = Replica(given.for_replica(), self.redis)

    async def start(self) -> None:
        self.server = RpcServer("127.0.0.1", 0)
        servicer = EncoderServicer(self.replica.ensure, self.load, self.desk)
        self.server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, FULL_NAME)
        self.address = f"127.0.0.1:{await self.server.start()}"
        self.stub = encoder_pb2_grpc.EncoderServiceStub(self.channels.get(self.address))

    async def close(self) -> None:
        await self.channels.close()
        await self.server.drain(0)
        await self.redis.aclose()

    async def encode(self, one: Upload) -> encoder_pb2.EncodeResponse:
        request = encoder_pb2.EncodeRequest(request_id="r", images=[one.message])
        with rpc_errors("encoder"):
            (response,) = [response async for response in self.stub.Encode(request)]
        return response

    async def send(self, one: Upload, data: bytes) -> None:
        with rpc_errors("encoder"):
            await Pixels(lambda *_: data, self.channels).send(self.address, [one.message], 30)

    async def fetch(self, key: str, rows: int) -> torch.Tensor:
        source = EmbeddingSource(EmbeddingStore(self.redis, memory_bytes=2**20), self.channels)
        ready = prefill_pb2.ImageReady(embedding_key=key, held_at=self.address)
        return (await source.get(ready, rows, "r"))["embeddings"]


@pytest.fixture
async def front(checkpoint: Path) -> AsyncIterator[Front]:
    front = Front(checkpoint, NOWHERE)
    await front.start()
    yield front
    await front.close()


async def test_without_a_store_the_pixels_are_asked_for(front: Front, tower: Tower) -> None:
    one = describe(tower, noise(90, 70))
    with pytest.raises(ImagesNotFoundError):
        await front.encode(one)


async def test_without_a_store_the_embedding_goes_hand_to_hand(front: Front, tower: Tower) -> None:
    one = describe(tower, noise(90, 70))
    await front.send(one, png(noise(90, 70)))
    response = await front.encode(one)
    assert response.held_here
    expected = tower.encode([tower.preprocess(one.image)])[0]["embeddings"]
    assert torch.equal(await front.fetch(one.task.embedding_key, one.task.tokens), expected)


async def test_many_at_once_compute_once_without_a_store(front: Front, tower: Tower) -> None:
    one = describe(tower, noise(90, 70))
    await front.send(one, png(noise(90, 70)))
    responses = await asyncio.gather(*(front.encode(one) for _ in range(6)))
    assert sum(response.outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED for response in responses) == 1


async def test_other_pixels_under_a_picture_s_name_are_not_used(front: Front, tower: Tower) -> None:
    one = describe(tower, noise(90, 70))
    await front.send(one, png(noise(90, 70, seed=5)))
    with pytest.raises(ImagesNotFoundError):
        await front.encode(one)


async def test_another_scope_does_not_see_the_pixels(front: Front, tower: Tower) -> None:
    one = describe(tower, noise(90, 70))
    await front.send(one, png(noise(90, 70)))
    other = replace(one, task=replace(one.task, cache_scope="7" * 64))
    with pytest.raises(ImagesNotFoundError):
        await front.encode(other)


async def test_with_a_store_nothing_is_held(checkpoint: Path, tower: Tower, valkey_url: str) -> None:
    front = Front(checkpoint, valkey_url)
    await front.start()
    one = await upload(front.redis, tower, noise(90, 70))
    response = await front.encode(one)
    assert not response.held_here
    assert front.desk.embeddings.size_bytes == 0
    await front.close()


async def test_a_value_over_every_message_limit_arrives(front: Front) -> None:
    rows = torch.arange(6 * 10**6, dtype=torch.float32).reshape(1000, -1)
    front.desk.embeddings.put(KEY, bytes(codec.pack(KEY, {"embeddings": rows})))
    assert torch.equal(await front.fetch(KEY, 1000), rows)


@pytest.mark.parametrize("cut", [0, -1])
async def test_a_value_that_is_gone_or_damaged_begins_the_request_anew(front: Front, cut: int) -> None:
    if cut:
        front.desk.embeddings.put(KEY, bytes(codec.pack(KEY, {"embeddings": torch.zeros(3, 2)}))[:cut])
    with pytest.raises(UnavailableError):
        await front.fetch(KEY, 3)


def header(size: int, image_id: str = KEY) -> encoder_pb2.PutPixelsRequest:
    fields = encoder_pb2.PutPixelsHeader(cache_scope="5" * 64, image_id=image_id, size_bytes=size)
    return encoder_pb2.PutPixelsRequest(header=fields)


CHUNK = encoder_pb2.PutPixelsRequest(chunk=b"12345")


@pytest.mark.parametrize(
    "pieces", [[], [CHUNK], [header(5)], [header(4), CHUNK], [header(6), CHUNK], [header(5, "A" * 64), CHUNK]]
)
async def test_a_malformed_file_is_refused(front: Front, pieces: list[encoder_pb2.PutPixelsRequest]) -> None:
    with pytest.raises(InvalidArgumentError), rpc_errors("encoder"):
        await front.stub.PutPixels(iter(pieces))
    assert front.desk.pictures.get(picture_name("5" * 64, KEY)) is None


async def test_a_file_over_the_budget_is_refused(front: Front) -> None:
    front.desk.pictures.max_bytes = 4
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await front.stub.PutPixels(iter([header(5), CHUNK]))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
