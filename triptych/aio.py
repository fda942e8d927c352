"""The asyncio client: `triptych.client` with `await` in front; what both decide is in `triptych.exchange`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from triptych.answers import Answer, Delta, Event
from triptych.channel import open_channel
from triptych.client import CALL_TIMEOUT_S
from triptych.errors import ImagesNotFoundError
from triptych.exchange import Exchange, GenerateOptions
from triptych.messages import Image, Prompt
from triptych.status import rpc_errors
from triptych.uploads import find_request, pieces
from triptych.v1.router_pb2 import FindImagesResponse, ImageRecord, ListModelsRequest, ModelCard
from triptych.v1.router_pb2_grpc import RouterServiceStub

if TYPE_CHECKING:
    from triptych.v1.router_pb2_grpc import RouterServiceAsyncStub


class AsyncAnswerStream:
    """One answer on its way: iterate over its events, over its `text`, or wait for the whole `answer`."""

    def __init__(self, stub: RouterServiceAsyncStub, peer: str, exchange: Exchange) -> None:
        self._stub, self._peer, self._exchange = stub, peer, exchange
        self._events = self._run()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def text(self) -> AsyncIterator[str]:
        """The pieces of text as they become certain."""
        async for event in self:
            if isinstance(event, Delta) and event.text:
                yield event.text

    async def answer(self) -> Answer:
        """Read to the end and return everything."""
        async for _ in self:
            pass
        return self._exchange.answer()

    async def close(self) -> None:
        """Cancel the request unless it is complete; harmless twice."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[Event, None]:
        exchange = self._exchange
        while not exchange.complete:
            await self._upload()
            call = self._stub.Generate(exchange.request, timeout=exchange.left_s())
            try:
                with rpc_errors(self._peer):
                    async for response in call:
                        for event in exchange.on_response(response):
                            yield event
                exchange.on_end()
            except ImagesNotFoundError as error:
                exchange.on_missing(error)
            finally:
                call.cancel()

    async def _upload(self) -> None:
        for image in self._exchange.take_uploads():
            with rpc_errors(self._peer):
                await self._stub.PutImage(pieces(image, self._exchange.cache_salt), timeout=self._exchange.left_s())


class AsyncClient:
    """A connection to one router, `host:port`, for one event loop. Close it, or use it in an `async with`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._stub = RouterServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; answers still on their way are cancelled."""
        await self._channel.close()

    def generate(self, prompt: Prompt, model: str = "", **options: Unpack[GenerateOptions]) -> AsyncAnswerStream:
        """Ask for one answer, as `Client.generate`; the request is sent when the stream is first read."""
        return AsyncAnswerStream(self._stub, self._address, Exchange(prompt, model, options))

    async def put_image(self, image: Image, cache_salt: str | None = None) -> ImageRecord:
        """Make a picture known to the server; its bytes are sent only when they are missing there."""
        known = (await self.find_images([image.digest], cache_salt)).found
        if known:
            return known[0]
        with rpc_errors(self._address):
            return (await self._stub.PutImage(pieces(image, cache_salt), timeout=CALL_TIMEOUT_S)).image

    async def find_images(self, digests: list[str], cache_salt: str | None = None) -> FindImagesResponse:
        """Which of these pictures (file digests, at most 1024) are known there, and which are missing."""
        with rpc_errors(self._address):
            return await self._stub.FindImages(find_request(digests, cache_salt), timeout=CALL_TIMEOUT_S)

    async def list_models(self) -> list[ModelCard]:
        """The models served."""
        with rpc_errors(self._address):
            return list((await self._stub.ListModels(ListModelsRequest(), timeout=CALL_TIMEOUT_S)).models)
