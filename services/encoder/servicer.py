"""EncoderService on the wire: the pictures of a call go to the replicas at once, answers come as they are ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc

from common.metrics.stages import StageTimes
from common.tracing import Span, held, inside, span
from services.encoder.book import ReplicaBook
from services.encoder.desk import CHUNK_BYTES, Desk, picture_name
from services.encoder.load import Load
from services.encoder.work import Done, Task
from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError, NotFoundError, PayloadTooLargeError, ResourceExhaustedError
from triptych.v1 import encoder_pb2, encoder_pb2_grpc

FULL_NAME = "triptych.v1.EncoderService"


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """`ensure` brings one picture's embedding into the store, wherever it is computed, or returns it."""

    def __init__(
        self,
        ensure: Callable[[Task], Awaitable[Done]],
        load: Load,
        desk: Desk | None = None,
        book: ReplicaBook | None = None,
        times: StageTimes | None = None,
    ) -> None:
        self._ensure, self._load, self._times = ensure, load, times
        self._desk, self._book = desk or Desk(), book or ReplicaBook()

    async def Encode(
        self, request: encoder_pb2.EncodeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[encoder_pb2.EncodeResponse, None]:
        """One response per picture; the first failure ends the call and cancels the rest."""
        tasks = [self._with_data(task) for task in to_tasks(request)]
        self._load.admit(tasks)
        with held("encode call", request_id=request.request_id, pictures=len(tasks)) as current:
            running = {self._begin(task, current) for task in tasks}
            # Also when the call dies while a response is being written, where this generator is not told.
            context.add_done_callback(lambda _: _cancel(running))  # type: ignore[arg-type]  # the stub's own type
            try:
                for ready in asyncio.as_completed(running):
                    yield to_response(await ready)
            finally:
                _cancel(running)
                self._load.finish()

    async def FetchEmbedding(
        self, request: encoder_pb2.FetchEmbeddingRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[encoder_pb2.FetchEmbeddingResponse, None]:
        """A held embedding in pieces."""
        value = self._desk.embeddings.get(check_digest(request.embedding_key, "embedding_key"))
        if value is None:
            raise NotFoundError("the embedding is not held here any more", param="embedding_key")
        for start in range(0, len(value), CHUNK_BYTES):
            yield encoder_pb2.FetchEmbeddingResponse(chunk=value[start : start + CHUNK_BYTES])

    async def PutPixels(
        self,
        request_iterator: AsyncIterator[encoder_pb2.PutPixelsRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> encoder_pb2.PutPixelsResponse:
        """Hold a file for the Encode that follows."""
        header, data = await read_file(request_iterator, self._desk.pictures.max_bytes)
        self._desk.pictures.put(picture_name(header.cache_scope, header.image_id), data)
        return encoder_pb2.PutPixelsResponse()

    async def ReportReplica(
        self, request: encoder_pb2.ReportReplicaRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> encoder_pb2.ReportReplicaResponse:
        """Take note of a replica."""
        self._book.take(request)
        return encoder_pb2.ReportReplicaResponse()

    def _with_data(self, task: Task) -> Task:
        return replace(task, data=self._desk.pictures.get(picture_name(task.cache_scope, task.image_id)))

    def _begin(self, task: Task, call: Span) -> asyncio.Task[Done]:
        running = asyncio.create_task(self._one(task), context=inside(call))
        # Not by a `finally` inside: a task that is cancelled before its first step never gets there.
        running.add_done_callback(lambda done: self._end(task, done))
        return running

    def _end(self, task: Task, done: asyncio.Task[Done]) -> None:
        self._load.done(task)
        # The first failure ends the call; those of its other pictures are nobody's to ask for.
        if not done.cancelled():
            done.exception()

    async def _one(self, task: Task) -> Done:
        with span("encode picture", visual_tokens=task.tokens) as current:
            done = await self._timed(task)
            outcome = encoder_pb2.EncodeOutcome.Name(encoder_pb2.EncodeOutcome.ValueType(done.outcome))
            current.set_attributes({"outcome": outcome, "encode_ns": done.encode_ns, "size_bytes": done.size_bytes})
        if done.value is not None and not self._desk.embeddings.put(done.embedding_key, done.value):
            raise ResourceExhaustedError("the embedding fits neither into the store nor past it", retry_after_s=1.0)
        return done

    async def _timed(self, task: Task) -> Done:
        began = time.monotonic_ns()
        done = await self._ensure(task)
        if self._times is not None:
            self._times.note("encoder", "queue", time.monotonic_ns() - began - done.encode_ns)
            if done.encode_ns:
                self._times.note("encoder", "run", done.encode_ns)
        return done


def _cancel(running: set[asyncio.Task[Done]]) -> None:
    for task in running:
        task.cancel()


async def read_file(
    pieces: AsyncIterator[encoder_pb2.PutPixelsRequest], max_bytes: int
) -> tuple[encoder_pb2.PutPixelsHeader, bytes]:
    """Header and bytes of one file; InvalidArgumentError when they do not fit together.

    PayloadTooLargeError before any byte of a file over `max_bytes` is taken in.
    """
    first = await anext(aiter(pieces), None)
    if first is None or not first.HasField("header"):
        raise InvalidArgumentError("the first piece must be a header", param="header")
    header, data = first.header, bytearray()
    check_digest(header.cache_scope, "header.cache_scope")
    check_digest(header.image_id, "header.image_id")
    if header.size_bytes > max_bytes:
        raise PayloadTooLargeError(f"at most {max_bytes} bytes are held past the store", param="header.size_bytes")
    async for piece in pieces:
        data += piece.chunk
        if len(data) > header.size_bytes:
            break
    if len(data) != header.size_bytes or not data:
        raise InvalidArgumentError("the chunks do not have the announced size", param="header.size_bytes")
    return header, bytes(data)


def to_tasks(request: encoder_pb2.EncodeRequest) -> list[Task]:
    """The call's pictures; InvalidArgumentError names the first field at fault."""
    tasks = [_to_task(image, request.request_id, f"images[{index}]") for index, image in enumerate(request.images)]
    if not tasks:
        raise InvalidArgumentError("there is nothing to encode", param="images")
    if len({task.embedding_key for task in tasks}) != len(tasks):
        raise InvalidArgumentError("an embedding is asked for twice", param="images")
    return tasks


def _to_task(image: encoder_pb2.EncodeImage, request: str, where: str) -> Task:
    for name in ("embedding_key", "image_id", "cache_scope"):
        check_digest(getattr(image, name), f"{where}.{name}")
    for name in ("tokens", "width", "height"):
        if getattr(image, name) == 0:
            raise InvalidArgumentError(f"{name} must be positive", param=f"{where}.{name}")
    names = (image.embedding_key, image.image_id, image.cache_scope)
    return Task(*names, image.tokens, image.width, image.height, request)


def to_response(done: Done) -> encoder_pb2.EncodeResponse:
    """The wire form."""
    return encoder_pb2.EncodeResponse(
        embedding_key=done.embedding_key,
        outcome=encoder_pb2.EncodeOutcome.ValueType(done.outcome),
        size_bytes=done.size_bytes,
        encode_ns=done.encode_ns,
        held_here=done.value is not None,
    )
