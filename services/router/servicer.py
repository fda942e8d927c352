"""RouterService on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

import grpc

from common.identity import cache_scope
from services.router.caller import ANONYMOUS, Caller
from services.router.generation import Generator
from services.router.images import Images
from services.router.upload import read_body, read_header
from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError
from triptych.v1 import router_pb2, router_pb2_grpc

FULL_NAME = "triptych.v1.RouterService"
MAX_DIGESTS = 1024
Context = grpc.aio.ServicerContext[Any, Any]


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Message in, call, message out."""

    def __init__(self, generator: Generator, images: Images, card: router_pb2.ModelCard, timeout_s: float) -> None:
        self._generator, self._images, self._card, self._timeout_s = generator, images, card, timeout_s

    async def Generate(
        self, request: router_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[router_pb2.GenerateResponse]:
        """Stream one answer."""
        async with aclosing(self._generator.generate(request, self._caller(context))) as responses:
            async for response in responses:
                yield response

    async def PutImage(
        self, request_iterator: AsyncIterator[router_pb2.PutImageRequest], context: Context
    ) -> router_pb2.PutImageResponse:
        """Take in one picture."""
        pieces = aiter(request_iterator)
        header = await read_header(pieces)
        scope = _scope(header)
        body = await read_body(pieces, header.size_bytes, self._images.check_size)
        image = await self._images.put(scope, body, header.digest)
        return router_pb2.PutImageResponse(image=self._images.record(image))

    async def FindImages(
        self, request: router_pb2.FindImagesRequest, context: Context
    ) -> router_pb2.FindImagesResponse:
        """Split digests into known and missing."""
        digests = _check_digests(request.digests)
        found = await self._images.find(_scope(request), digests)
        records = [self._images.record(image) for image in found.values()]
        missing = [digest for digest in digests if digest not in found]
        return router_pb2.FindImagesResponse(found=records, missing=missing)

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """Name the one model."""
        return router_pb2.ListModelsResponse(models=[self._card])

    def _caller(self, context: Context) -> Caller:
        # None without a deadline, whatever the type stubs say.
        remaining = cast("float | None", context.time_remaining())
        timeout = self._timeout_s if remaining is None else min(remaining, self._timeout_s)
        return Caller(ANONYMOUS, asyncio.get_running_loop().time() + timeout)


def _scope(message: router_pb2.PutImageHeader | router_pb2.FindImagesRequest) -> str:
    given = {field.name: value for field, value in message.ListFields()}
    return cache_scope(ANONYMOUS, given.get("cache_salt"))


def _check_digests(digests: Sequence[str]) -> list[str]:
    if len(digests) > MAX_DIGESTS:
        raise InvalidArgumentError(f"at most {MAX_DIGESTS} digests are possible, not {len(digests)}", param="digests")
    return [check_digest(digest, f"digests[{index}]") for index, digest in enumerate(dict.fromkeys(digests))]
