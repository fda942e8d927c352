"""The asyncio client: `triptych.client` with `await` in front; what both decide is in `triptych.exchange`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from triptych.aio_streams import AsyncAnswerStream, upload
from triptych.connection import CALL_TIMEOUT_S, AsyncConnection
from triptych.errors import TriptychError
from triptych.exchange import Exchange, GenerateOptions
from triptych.messages import Image, Prompt
from triptych.retry import Retry, Tries
from triptych.tls import Tls
from triptych.uploads import find_request, list_request, pieces
from triptych.v1.router_pb2 import (
    ExplainRequest,
    Explanation,
    FindImagesResponse,
    ImageRecord,
    ListImagesRequest,
    ListImagesResponse,
    ListModelsRequest,
    ModelCard,
    TokenizeRequest,
    TokenizeResponse,
    WatchClusterRequest,
    WatchClusterResponse,
)


class AsyncClient:
    """A connection to one router, `host:port`, for one event loop. Close it, or use it in an `async with`.

    `api_key` and `tls` as for `Client`.
    """

    def __init__(
        self, address: str, *, api_key: str | None = None, tls: Tls | None = None, retry: Retry | None = None
    ) -> None:
        self._retry = retry or Retry()
        self._connection = AsyncConnection(address, self._retry, api_key, tls)
        self._stub = self._connection.stub

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Answers on their way end with RequestCancelledError, later calls with ClientClosedError; harmless twice."""
        await self._connection.close()

    def generate(self, prompt: Prompt, model: str = "", **options: Unpack[GenerateOptions]) -> AsyncAnswerStream:
        """Ask for one answer, as `Client.generate`; the request is sent when the stream is first read."""
        return AsyncAnswerStream(self._connection, Exchange(prompt, model, options, self._retry))

    async def tokenize(self, prompt: Prompt, model: str = "", **options: Unpack[GenerateOptions]) -> TokenizeResponse:
        """The prompt as `generate` would give it to the model: token ids, every picture expanded."""
        exchange = Exchange(prompt, model, options, self._retry)
        while True:
            await upload(self._connection, exchange)
            try:
                with self._connection.errors():
                    asked = TokenizeRequest(request=exchange.request)
                    return await self._stub.Tokenize(asked, timeout=exchange.left_s())
            except TriptychError as error:
                await asyncio.sleep(exchange.on_failure(error))

    async def put_image(self, image: Image, cache_salt: str | None = None) -> ImageRecord:
        """Make a picture known to the server; its bytes are sent only when they are missing there."""
        known = (await self.find_images([image.digest], cache_salt)).found
        if known:
            return known[0]
        send = lambda: self._stub.PutImage(pieces(image, cache_salt), timeout=CALL_TIMEOUT_S)  # noqa: E731
        return (await self._connection.call(send)).image

    async def find_images(self, digests: list[str], cache_salt: str | None = None) -> FindImagesResponse:
        """Which of these pictures (file digests, at most 1024) are known there, and which are missing."""
        asked = find_request(digests, cache_salt)
        return await self._connection.call(lambda: self._stub.FindImages(asked, timeout=CALL_TIMEOUT_S))

    async def list_images(self, cache_salt: str | None = None) -> ListImagesResponse:
        """All pictures known in the scope, the latest used first, and the groups of those that look the same."""
        listing = ListImagesResponse()
        while True:
            asked = list_request(cache_salt, listing.next_page_token)
            page = await self._list_images(asked)
            listing.MergeFrom(page)
            listing.next_page_token = page.next_page_token
            if not page.next_page_token:
                return listing

    async def explain(self, last: int = 20, session_id: str = "", cache_salt: str | None = None) -> list[Explanation]:
        """What the caches did for the latest requests, and where their prompts diverged; the latest first."""
        asked = ExplainRequest(last=last, session_id=session_id, cache_salt=cache_salt)
        return list((await self._connection.call(lambda: self._stub.Explain(asked, timeout=CALL_TIMEOUT_S))).requests)

    async def list_models(self) -> list[ModelCard]:
        """The models served."""
        asked = ListModelsRequest()
        return list((await self._connection.call(lambda: self._stub.ListModels(asked, timeout=CALL_TIMEOUT_S))).models)

    async def watch_cluster(self, every_s: float = 1.0) -> AsyncGenerator[WatchClusterResponse, None]:
        """As `Client.watch_cluster`."""
        tries = Tries(self._retry)
        while True:
            try:
                async with aclosing(self._watch(every_s)) as snapshots:
                    async for snapshot in snapshots:
                        yield snapshot
                        tries = Tries(self._retry)
                return
            except TriptychError as error:
                await asyncio.sleep(tries.pause_s(error))

    async def _watch(self, every_s: float) -> AsyncGenerator[WatchClusterResponse, None]:
        with self._connection.errors():
            call = self._stub.WatchCluster(WatchClusterRequest(every_ms=round(every_s * 1000)))
            try:
                async for snapshot in call:
                    yield snapshot
            finally:
                call.cancel()

    async def _list_images(self, asked: ListImagesRequest) -> ListImagesResponse:
        return await self._connection.call(lambda: self._stub.ListImages(asked, timeout=CALL_TIMEOUT_S))
