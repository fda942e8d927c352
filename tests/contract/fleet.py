"""A fleet of workers without tensors: real gRPC servers in the registry that answer as a test tells them.

Decode waits for the reservation to be filled by prefill, as real workers do, so that a router which leaves out a step
hangs instead of passing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from redis.asyncio import Redis

from common.identity.blocks import prompt_chain
from common.rpc.cachefeed import Change
from common.rpc.server import RpcServer
from common.rpc.tls import ServerTls
from common.rpc.worker import FULL_NAME, WorkerServicer
from common.store.registry import Registration
from triptych.errors import TriptychError
from triptych.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
)
from triptych.v1.types_pb2 import FinishReason, GeneratedToken, KvLayout, TokenChoice
from triptych.v1.worker_pb2 import GetLoadResponse, WorkerInfo, WorkerRole
from triptych.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server

Context = grpc.aio.ServicerContext[Any, Any]
LAYOUT = KvLayout(version=1, dtype="float32", num_layers=4, num_kv_heads=2, head_dim=32, block_size=16)
REASON_STOP = FinishReason.FINISH_REASON_STOP


@dataclass
class Script:
    """What the fleet does. `pause_after` tokens decode waits for `resume`; errors are raised at their stage."""

    answer: list[int] = field(default_factory=list)
    reason: FinishReason.ValueType = REASON_STOP
    pause_after: int | None = None
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    encode_error: TriptychError | None = None
    prefill_errors: list[TriptychError] = field(default_factory=list)
    decode_errors: list[TriptychError] = field(default_factory=list)
    error_after_tokens: TriptychError | None = None
    encode_gate: asyncio.Event | None = None
    die_after_tokens: bool = False
    end_after_tokens: bool = False
    # What further choices of a request say, and what the next requests say in turn.
    others: dict[int, list[int]] = field(default_factory=dict)
    turns: list[list[int]] = field(default_factory=list)

    def spoken(self, choice: int) -> list[int]:
        return self.others.get(choice, self.answer)


class Index:
    """Block hashes that a fake worker claims to have cached; a `CacheIndex`."""

    def __init__(self) -> None:
        self.hashes: dict[bytes, None] = {}
        self._mirrors: list[Change] = []

    def snapshot(self) -> tuple[int, list[bytes]]:
        return 0, list(self.hashes)

    def on_change(self, mirror: Change) -> None:
        self._mirrors.append(mirror)

    def stop_change(self, mirror: Change) -> None:
        if mirror in self._mirrors:
            self._mirrors.remove(mirror)

    def add(self, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            self.hashes[block_hash] = None
            for mirror in self._mirrors:
                mirror(block_hash, True)


class Worker:
    """One fake worker: a server, its registry entry, and what it saw."""

    def __init__(self, fleet: Fleet, role: WorkerRole.ValueType) -> None:
        self.fleet, self.script, self.role = fleet, fleet.script, role
        self.instance_id = uuid.uuid4().hex
        self.requests: list[Any] = []
        self.running = 0
        self.index = Index()
        self.load = GetLoadResponse()
        self.server = RpcServer("127.0.0.1", 0, [self.instance_id], fleet.tls)
        self.service = WorkerServicer(lambda: self.info, lambda: self.load, self.drain, self.index, [self.instance_id])
        self.server.add(add_WorkerServiceServicer_to_server, self.service, FULL_NAME)
        self.info = WorkerInfo(
            instance_id=self.instance_id,
            role=role,
            model="triptych-demo",
            model_fingerprint="f" * 64,
            dtype="float32",
            layout=LAYOUT,
            num_blocks=1024,
            preprocessing_fingerprint=fleet.preprocessing,
        )

    async def start(self) -> None:
        port = await self.server.start()
        self.info.address = f"127.0.0.1:{port}"
        self.registration = Registration(self.fleet.redis, lambda: self.info)
        await self.registration.announce()
        self.registration.start()

    def drain(self) -> None:
        self.info.draining = True

    async def die(self) -> None:
        """Break every connection; the registry entry stays, as after a SIGKILL."""
        await self.server.drain(0)

    async def stop(self) -> None:
        await self.registration.close()
        await self.service.leave()
        await self.server.drain(0)


class FakeEncoder(Worker, encoder_pb2_grpc.EncoderServiceServicer):
    """Every key is computed once and found from then on."""

    async def Encode(
        self, request: encoder_pb2.EncodeRequest, context: Context
    ) -> AsyncIterator[encoder_pb2.EncodeResponse]:
        self.requests.append(request)
        for image in request.images:
            if self.script.encode_gate is not None:
                await self.script.encode_gate.wait()
            if self.script.encode_error is not None:
                raise self.script.encode_error
            known = image.embedding_key in self.fleet.embeddings
            self.fleet.embeddings.add(image.embedding_key)
            outcomes = encoder_pb2.EncodeOutcome
            outcome = outcomes.ENCODE_OUTCOME_HIT if known else outcomes.ENCODE_OUTCOME_COMPUTED
            yield encoder_pb2.EncodeResponse(embedding_key=image.embedding_key, outcome=outcome)


class FakePrefill(Worker, prefill_pb2_grpc.PrefillServiceServicer):
    """Fills the reservation once every picture of the prompt was announced."""

    async def Prefill(
        self, request_iterator: AsyncIterator[prefill_pb2.PrefillRequest], context: Context
    ) -> prefill_pb2.PrefillResponse:
        self.running += 1
        try:
            return await self._prefill(request_iterator)
        finally:
            self.running -= 1

    async def _prefill(self, requests: AsyncIterator[prefill_pb2.PrefillRequest]) -> prefill_pb2.PrefillResponse:
        begin = (await anext(aiter(requests))).begin
        self.requests.append(begin)
        if self.script.prefill_errors:
            raise self.script.prefill_errors.pop(0)
        self._remember(begin)
        waiting = {image.embedding_key for image in begin.prompt.images}
        async for request in requests:
            waiting.discard(request.image_ready.embedding_key)
        assert not waiting, "prefill was not told of every picture"
        self.fleet.reservations[begin.ticket.reservation_id].set()
        return prefill_pb2.PrefillResponse(computed_tokens=len(begin.prompt.token_ids), compute_ns=7, transfer_bytes=11)

    def _remember(self, begin: prefill_pb2.PrefillBegin) -> None:
        chain = prompt_chain(begin.prompt, self.info.model_fingerprint, self.info.layout)
        chain.extend(begin.prompt.token_ids)
        self.index.add(chain.hashes)


class FakeDecode(Worker, decode_pb2_grpc.DecodeServiceServicer):
    """Speaks the scripted answer, one token an event, up to max_tokens."""

    async def Decode(
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        self.requests.append(request)
        self.running += 1
        try:
            if self.script.decode_errors:
                raise self.script.decode_errors.pop(0)
            if self._is_complete(request):
                yield decode_pb2.DecodeResponse(finished=decode_pb2.DecodeFinished(reason=self.script.reason))
                return
            if self.script.turns:
                self.script.answer = self.script.turns.pop(0)
            ticket = self._reserve()
            yield decode_pb2.DecodeResponse(ticket=ticket)
            await self.fleet.reservations[ticket.reservation_id].wait()
            async for event in self._speak(request):
                yield event
        finally:
            self.running -= 1

    def _is_complete(self, request: decode_pb2.DecodeRequest) -> bool:
        return 0 < len(self.script.answer) <= request.prompt.generated

    def _reserve(self) -> kv_pb2.KvTicket:
        reservation = uuid.uuid4().hex
        self.fleet.reservations[reservation] = asyncio.Event()
        return kv_pb2.KvTicket(reservation_id=reservation, instance_id=self.instance_id, layout=LAYOUT)

    async def _speak(self, request: decode_pb2.DecodeRequest) -> AsyncIterator[decode_pb2.DecodeResponse]:
        limit, begun = request.sampling.max_tokens, request.prompt.generated
        answer = self.script.spoken(request.sampling.choice_index)
        for index, token_id in enumerate(answer[begun:limit], start=begun):
            if index - begun == self.script.pause_after and self.script.end_after_tokens:
                return
            if index - begun == self.script.pause_after and (not begun or self.script.die_after_tokens):
                await self._pause()
            top = [TokenChoice(token_id=token_id, logprob=-0.5)] * request.sampling.top_logprobs
            token = GeneratedToken(token_id=token_id, logprob=-0.5, top=top)
            yield decode_pb2.DecodeResponse(tokens=decode_pb2.DecodedTokens(tokens=[token]))
        reason = FinishReason.FINISH_REASON_LENGTH if len(answer) > limit else self.script.reason
        yield decode_pb2.DecodeResponse(finished=decode_pb2.DecodeFinished(reason=reason))

    async def _pause(self) -> None:
        if self.script.die_after_tokens:
            # Not awaited: the server waits for this very call.
            self.dying = asyncio.create_task(self.die())
        elif self.script.error_after_tokens is not None:
            raise self.script.error_after_tokens
        await self.script.resume.wait()


KINDS: dict[str, tuple[type[Worker], WorkerRole.ValueType, Any, str]] = {
    "encoder": (
        FakeEncoder,
        WorkerRole.WORKER_ROLE_ENCODER,
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server,
        "triptych.v1.EncoderService",
    ),
    "prefill": (
        FakePrefill,
        WorkerRole.WORKER_ROLE_PREFILL,
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server,
        "triptych.v1.PrefillService",
    ),
    "decode": (
        FakeDecode,
        WorkerRole.WORKER_ROLE_DECODE,
        decode_pb2_grpc.add_DecodeServiceServicer_to_server,
        "triptych.v1.DecodeService",
    ),
}


class Fleet:
    """Workers that share a script, a registry and an imaginary embedding store."""

    def __init__(self, redis: Redis, preprocessing: str, tls: ServerTls | None = None) -> None:
        self.redis, self.preprocessing, self.tls = redis, preprocessing, tls
        self.script = Script()
        self.embeddings: set[str] = set()
        self.reservations: dict[str, asyncio.Event] = {}
        self.workers: dict[str, list[Worker]] = {kind: [] for kind in KINDS}

    async def add(self, kind: str) -> Worker:
        """One more worker, announced."""
        build, role, register, name = KINDS[kind]
        worker = build(self, role)
        worker.server.add(register, worker, name)
        await worker.start()
        self.workers[kind].append(worker)
        return worker

    @property
    def running(self) -> int:
        """Calls that prefill and decode are busy with."""
        return sum(worker.running for worker in (*self.workers["prefill"], *self.workers["decode"]))

    def requests(self, kind: str) -> list[Any]:
        """What all workers of a kind were asked."""
        return [request for worker in self.workers[kind] for request in worker.requests]

    async def close(self) -> None:
        """Stop all."""
        self.script.resume.set()
        for workers in self.workers.values():
            for worker in workers:
                await worker.stop()
