"""EncoderService on the wire: the pictures of a call go to the replicas at once, answers come as they are ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc

from services.encoder.load import Load
from services.encoder.work import Done, Task
from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError
from triptych.v1 import encoder_pb2, encoder_pb2_grpc

FULL_NAME = "triptych.v1.EncoderService"


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """`ensure` brings one picture's embedding into the store, wherever it is computed."""

    def __init__(self, ensure: Callable[[Task], Awaitable[Done]], load: Load) -> None:
        self._ensure, self._load = ensure, load

    async def Encode(
        self, request: encoder_pb2.EncodeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[encoder_pb2.EncodeResponse, None]:
        """One response per picture; the first failure ends the call and cancels the rest."""
        tasks = to_tasks(request)
        self._load.admit(tasks)
        running = {asyncio.create_task(self._one(task)) for task in tasks}
        # Also when the call dies while a response is being written, where this generator is not told.
        context.add_done_callback(lambda _: _cancel(running))  # type: ignore[arg-type]  # the stub's own type
        try:
            for ready in asyncio.as_completed(running):
                yield to_response(await ready)
        finally:
            _cancel(running)
            self._load.finish()

    async def _one(self, task: Task) -> Done:
        try:
            return await self._ensure(task)
        finally:
            self._load.done(task)


def _cancel(running: set[asyncio.Task[Done]]) -> None:
    for task in running:
        task.cancel()


def to_tasks(request: encoder_pb2.EncodeRequest) -> list[Task]:
    """The call's pictures; InvalidArgumentError names the first field at fault."""
    tasks = [_to_task(image, f"images[{index}]") for index, image in enumerate(request.images)]
    if not tasks:
        raise InvalidArgumentError("there is nothing to encode", param="images")
    if len({task.embedding_key for task in tasks}) != len(tasks):
        raise InvalidArgumentError("an embedding is asked for twice", param="images")
    return tasks


def _to_task(image: encoder_pb2.EncodeImage, where: str) -> Task:
    for name in ("embedding_key", "image_id", "cache_scope"):
        check_digest(getattr(image, name), f"{where}.{name}")
    for name in ("tokens", "width", "height"):
        if getattr(image, name) == 0:
            raise InvalidArgumentError(f"{name} must be positive", param=f"{where}.{name}")
    return Task(image.embedding_key, image.image_id, image.cache_scope, image.tokens, image.width, image.height)


def to_response(done: Done) -> encoder_pb2.EncodeResponse:
    """The wire form."""
    return encoder_pb2.EncodeResponse(
        embedding_key=done.embedding_key,
        outcome=encoder_pb2.EncodeOutcome.ValueType(done.outcome),
        size_bytes=done.size_bytes,
        encode_ns=done.encode_ns,
    )
