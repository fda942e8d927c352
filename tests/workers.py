"""Prefill and decode workers in the test's own event loop, on real gRPC, and a caller that acts as the router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from torch import Tensor
from transformers import AutoConfig

from common.families import load_family
from common.store.client import connect
from common.store.embeddings import EmbeddingStore
from common.worker.process import WorkerProcess
from services.decode import __main__ as decode_main
from services.decode.settings import DecodeSettings
from services.prefill import __main__ as prefill_main
from services.prefill.settings import PrefillSettings
from services.worker import __main__ as combined_main
from services.worker.settings import CombinedSettings
from tests.stored import publish
from triptych.channel import open_channel
from triptych.status import rpc_errors
from triptych.tls import Tls
from triptych.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    types_pb2,
    worker_pb2,
    worker_pb2_grpc,
)


@dataclass
class Picture:
    """A picture of a prompt: its embedding key, its size in pixels and the tower's tensors."""

    key: str
    width: int
    height: int
    tensors: Mapping[str, Tensor]


@dataclass
class Answer:
    """What a request gave."""

    tokens: list[types_pb2.GeneratedToken] = field(default_factory=list)
    reason: int = 0
    account: prefill_pb2.PrefillResponse | None = None

    @property
    def token_ids(self) -> list[int]:
        """The tokens' ids."""
        return [token.token_id for token in self.tokens]


class Pair:
    """One prefill and one decode worker; `peers` are addresses that prefill is told to ask for cached KV."""

    def __init__(self, model: Path, redis_url: str, prefill: grpc.aio.Channel, decode: grpc.aio.Channel) -> None:
        self.family = load_family(model)
        self.prefill = prefill_pb2_grpc.PrefillServiceStub(prefill)
        self.decode = decode_pb2_grpc.DecodeServiceStub(decode)
        self.channels = {"prefill": prefill, "decode": decode}
        self.config = AutoConfig.from_pretrained(model)
        self.peers: list[str] = []
        self._redis_url = redis_url

    async def put(self, picture: Picture) -> None:
        """Store an embedding, as the encoder does."""
        redis = connect(self._redis_url)
        await publish(EmbeddingStore(redis), picture.key, "test", picture.tensors)
        await redis.aclose()

    def prompt(self, token_ids: Sequence[int], pictures: Sequence[Picture] = ()) -> types_pb2.Prompt:
        """The prompt with every image marker in `token_ids` expanded."""
        layouts = [self.family.layout(picture.width, picture.height) for picture in pictures]
        expanded, spans = self.family.expand(token_ids, layouts)
        images = [
            types_pb2.ImageSpan(offset=span.offset, length=span.length, grid=span.grid, embedding_key=picture.key)
            for span, picture in zip(spans, pictures, strict=True)
        ]
        return types_pb2.Prompt(token_ids=expanded, images=images)

    async def load(self, role: str) -> worker_pb2.GetLoadResponse:
        """Current load of "prefill" or "decode"."""
        stub = worker_pb2_grpc.WorkerServiceStub(self.channels[role])
        return await stub.GetLoad(worker_pb2.GetLoadRequest())

    async def idle(self) -> bool:
        """True once no block is in use anywhere; gives cancelled calls a moment to be noticed."""
        for _ in range(500):
            loads = [await self.load("prefill"), await self.load("decode")]
            if not any(load.blocks_in_use or load.running_requests or load.waiting_requests for load in loads):
                return True
            await asyncio.sleep(0.02)
        return False

    async def ask(
        self, prompt: types_pb2.Prompt, sampling: types_pb2.SamplingParams, reserved: asyncio.Barrier | None = None
    ) -> Answer:
        """One request from start to finish, all embeddings announced at once.

        With `reserved` it is computed when all that meet there hold their blocks on decode.
        """
        answer = Answer()
        call = self.decode.Decode(decode_pb2.DecodeRequest(request_id="test", prompt=prompt, sampling=sampling))
        try:
            with rpc_errors():
                async for event in call:
                    kind = event.WhichOneof("event")
                    if kind == "ticket":
                        if reserved is not None:
                            await reserved.wait()
                        answer.account = await self.run_prefill(prompt, sampling, event.ticket)
                    elif kind == "tokens":
                        answer.tokens += event.tokens.tokens
                    else:
                        answer.reason = event.finished.reason
        finally:
            call.cancel()
        return answer

    async def run_prefill(
        self,
        prompt: types_pb2.Prompt,
        sampling: types_pb2.SamplingParams,
        ticket: kv_pb2.KvTicket,
        announce: bool = True,
    ) -> prefill_pb2.PrefillResponse:
        """Only the prefill of a request; without `announce` its embeddings never come."""
        over = asyncio.Event()

        async def messages() -> AsyncIterator[prefill_pb2.PrefillRequest]:
            begin = prefill_pb2.PrefillBegin(request_id="test", prompt=prompt, sampling=sampling, ticket=ticket)
            begin.peers.extend(self.peers)
            yield prefill_pb2.PrefillRequest(begin=begin)
            if not announce:
                await over.wait()
                return
            for key in dict.fromkeys(span.embedding_key for span in prompt.images):
                yield prefill_pb2.PrefillRequest(image_ready=prefill_pb2.ImageReady(embedding_key=key))

        try:
            with rpc_errors():
                return await self.prefill.Prefill(messages())
        finally:
            # gRPC keeps waiting for the next message of a call that has failed.
            over.set()


@asynccontextmanager
async def running_pair(
    model: Path,
    redis_url: str,
    prefill: Mapping[str, object] | None = None,
    decode: Mapping[str, object] | None = None,
    tls: Tls | None = None,
) -> AsyncIterator[Pair]:
    """Both workers, apart; `prefill` and `decode` are further settings, `tls` is what the test calls them with."""
    common = {"model": model, "redis_url": redis_url, "blocks": 256, "drain_grace_s": 1.0}
    workers = [
        prefill_main.build(PrefillSettings.model_validate({**common, **(prefill or {})})),
        decode_main.build(DecodeSettings.model_validate({**common, **(decode or {})})),
    ]
    async with running(workers, tls) as channels:
        yield Pair(model, redis_url, *channels)


@asynccontextmanager
async def running_combined(model: Path, redis_url: str, **settings: object) -> AsyncIterator[Pair]:
    """One worker that serves both stages on one pool."""
    common = {"model": model, "redis_url": redis_url, "blocks": 256, "drain_grace_s": 1.0}
    worker = combined_main.build(CombinedSettings.model_validate({**common, **settings}))
    async with running([worker]) as (channel,):
        yield Pair(model, redis_url, channel, channel)


@asynccontextmanager
async def running(workers: Sequence[WorkerProcess], tls: Tls | None = None) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Started workers and a channel to each."""
    channels: list[grpc.aio.Channel] = []
    try:
        for worker in workers:
            await worker.start()
            channels.append(open_channel(worker.address, tls))
        yield channels
    finally:
        for channel in channels:
            await channel.close()
        for worker in workers:
            await worker.stop()
