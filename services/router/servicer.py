"""RouterService on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from typing import Any, cast

import grpc

from services.router.access.access import Access
from services.router.caller import Caller
from services.router.generation import Generator
from services.router.history.history import KEPT, History
from services.router.pictures.images import Images
from services.router.pictures.incoming import Incoming
from services.router.pictures.upload import read_body, read_header
from services.router.snapshot import Snapshots
from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError
from triptych.v1 import router_pb2, router_pb2_grpc

FULL_NAME = "triptych.v1.RouterService"
MAX_DIGESTS = 1024
EVERY_MS, LEAST_EVERY_MS = 1000, 100
EXPLAINED = 20
Context = grpc.aio.ServicerContext[Any, Any]


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Message in, call, message out."""

    def __init__(
        self,
        generator: Generator,
        images: Images,
        card: router_pb2.ModelCard,
        snapshots: Snapshots,
        history: History,
        access: Access,
        incoming: Incoming,
        timeout_s: float,
    ) -> None:
        self._generator, self._images, self._card = generator, images, card
        self._snapshots, self._history = snapshots, history
        self._access, self._incoming, self._timeout_s = access, incoming, timeout_s

    async def Generate(
        self, request: router_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[router_pb2.GenerateResponse]:
        """Stream one answer."""
        with _counted(self._caller(context)) as caller:
            async with aclosing(self._generator.generate(request, caller)) as responses:
                async for response in responses:
                    yield response

    async def PutImage(
        self, request_iterator: AsyncIterator[router_pb2.PutImageRequest], context: Context
    ) -> router_pb2.PutImageResponse:
        """Take in one picture."""
        with _counted(self._caller(context)) as caller:
            pieces = aiter(request_iterator)
            async with self._incoming.one(caller, "the upload") as share:
                header = await read_header(pieces)
                scope = _scope(header, caller)
                self._images.check_size(header.size_bytes)
                share.reserve(header.size_bytes)
                body = await read_body(pieces, header.size_bytes)
            image = await self._images.put(scope, body, header.digest)
        return router_pb2.PutImageResponse(image=self._images.record(image))

    async def FindImages(
        self, request: router_pb2.FindImagesRequest, context: Context
    ) -> router_pb2.FindImagesResponse:
        """Split digests into known and missing."""
        with _counted(self._caller(context)) as caller:
            scope, digests = _scope(request, caller), _check_digests(request.digests)
            found = await self._images.find(scope, digests)
        records = [self._images.record(image) for image in found.values()]
        missing = [digest for digest in digests if digest not in found]
        return router_pb2.FindImagesResponse(found=records, missing=missing)

    async def ListImages(
        self, request: router_pb2.ListImagesRequest, context: Context
    ) -> router_pb2.ListImagesResponse:
        """One page of the pictures known in the caller's scope."""
        with _counted(self._caller(context)) as caller:
            return await self._images.page(_scope(request, caller), request.page_size, request.page_token)

    async def WatchCluster(
        self, request: router_pb2.WatchClusterRequest, context: Context
    ) -> AsyncIterator[router_pb2.WatchClusterResponse]:
        """Show the cluster until the caller leaves, or may not see it any more."""
        self._caller(context).check_operator()
        every_s = max(LEAST_EVERY_MS, request.every_ms or EVERY_MS) / 1000
        async with aclosing(self._snapshots.every(every_s)) as snapshots:
            async for snapshot in snapshots:
                self._caller(context).check_operator()
                yield snapshot

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """Name the one model."""
        self._caller(context)
        return router_pb2.ListModelsResponse(models=[self._card])

    async def Explain(self, request: router_pb2.ExplainRequest, context: Context) -> router_pb2.ExplainResponse:
        """The latest requests of the caller's scope."""
        count = min(request.last or EXPLAINED, KEPT)
        with _counted(self._caller(context)) as caller:
            latest = self._history.latest(_scope(request, caller), count, request.session_id)
        return router_pb2.ExplainResponse(requests=latest)

    async def Tokenize(self, request: router_pb2.TokenizeRequest, context: Context) -> router_pb2.TokenizeResponse:
        """The prompt of a request as token ids."""
        with _counted(self._caller(context)) as caller:
            return await self._generator.tokenize(request.request, caller)

    async def Detokenize(
        self, request: router_pb2.DetokenizeRequest, context: Context
    ) -> router_pb2.DetokenizeResponse:
        """The text of token ids."""
        with _counted(self._caller(context)):
            return router_pb2.DetokenizeResponse(text=await self._generator.detokenize(request.token_ids))

    def _caller(self, context: Context) -> Caller:
        """Who calls: every method asks this first; UnauthenticatedError without a known key."""
        # None without a deadline, whatever the type stubs say.
        remaining = cast("float | None", context.time_remaining())
        timeout = self._timeout_s if remaining is None else min(remaining, self._timeout_s)
        metadata = dict(context.invocation_metadata() or ())
        return self._access.caller(_text(metadata.get("authorization")), timeout)


@contextmanager
def _counted(caller: Caller) -> Iterator[Caller]:
    """The block is one request of the caller's quota; QuotaExceededError when the tenant has too many."""
    with closing(caller.allowance) as allowance:
        allowance.begin()
        yield caller


def _text(value: str | bytes | None) -> str | None:
    return value if isinstance(value, str) else None


def _scope(
    message: router_pb2.PutImageHeader
    | router_pb2.FindImagesRequest
    | router_pb2.ListImagesRequest
    | router_pb2.ExplainRequest,
    caller: Caller,
) -> str:
    given = {field.name: value for field, value in message.ListFields()}
    return caller.scope(given.get("cache_salt"))


def _check_digests(digests: Sequence[str]) -> list[str]:
    if len(digests) > MAX_DIGESTS:
        raise InvalidArgumentError(f"at most {MAX_DIGESTS} digests are possible, not {len(digests)}", param="digests")
    return [check_digest(digest, f"digests[{index}]") for index, digest in enumerate(dict.fromkeys(digests))]
