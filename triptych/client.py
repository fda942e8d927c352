"""The blocking client. `triptych.aio` is its asyncio twin; what both decide is in `triptych.exchange`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Self, Unpack

import grpc

from triptych.answers import Answer, Delta, Event
from triptych.channel import CHANNEL_OPTIONS
from triptych.errors import ImagesNotFoundError
from triptych.exchange import Exchange, GenerateOptions
from triptych.messages import Image, Prompt
from triptych.status import rpc_errors
from triptych.uploads import find_request, pieces
from triptych.v1.router_pb2 import FindImagesResponse, ImageRecord, ListModelsRequest, ModelCard
from triptych.v1.router_pb2_grpc import RouterServiceStub

CALL_TIMEOUT_S = 60.0


class AnswerStream:
    """One answer on its way: iterate over its events, over its `text`, or wait for the whole `answer`."""

    def __init__(self, stub: RouterServiceStub, peer: str, exchange: Exchange) -> None:
        self._stub, self._peer, self._exchange = stub, peer, exchange
        self._events = self._run()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def text(self) -> Iterator[str]:
        """The pieces of text as they become certain."""
        return (event.text for event in self if isinstance(event, Delta) and event.text)

    def answer(self) -> Answer:
        """Read to the end and return everything."""
        for _ in self:
            pass
        return self._exchange.answer()

    def close(self) -> None:
        """Cancel the request unless it is complete; harmless twice."""
        self._events.close()

    def _run(self) -> Generator[Event, None, None]:
        exchange = self._exchange
        while not exchange.complete:
            self._upload()
            call = self._stub.Generate(exchange.request, timeout=exchange.left_s())
            try:
                with rpc_errors(self._peer):
                    for response in call:
                        yield from exchange.on_response(response)
                exchange.on_end()
            except ImagesNotFoundError as error:
                exchange.on_missing(error)
            finally:
                call.cancel()

    def _upload(self) -> None:
        for image in self._exchange.take_uploads():
            with rpc_errors(self._peer):
                self._stub.PutImage(pieces(image, self._exchange.cache_salt), timeout=self._exchange.left_s())


class Client:
    """A connection to one router, `host:port`. Safe to share between threads; close it, or use it in a `with`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = RouterServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; answers still on their way end with RequestCancelledError."""
        self._channel.close()

    def generate(self, prompt: Prompt, model: str = "", **options: Unpack[GenerateOptions]) -> AnswerStream:
        """Ask for one answer. The request is sent when the stream is first read.

        Pictures travel by name; exactly those that the server lacks are uploaded, once each. An empty `model` means
        the only one served. Raises InvalidArgumentError here, everything else while reading.
        """
        return AnswerStream(self._stub, self._address, Exchange(prompt, model, options))

    def put_image(self, image: Image, cache_salt: str | None = None) -> ImageRecord:
        """Make a picture known to the server; its bytes are sent only when they are missing there."""
        known = self.find_images([image.digest], cache_salt).found
        if known:
            return known[0]
        with rpc_errors(self._address):
            return self._stub.PutImage(pieces(image, cache_salt), timeout=CALL_TIMEOUT_S).image

    def find_images(self, digests: list[str], cache_salt: str | None = None) -> FindImagesResponse:
        """Which of these pictures (file digests, at most 1024) are known there, and which are missing."""
        with rpc_errors(self._address):
            return self._stub.FindImages(find_request(digests, cache_salt), timeout=CALL_TIMEOUT_S)

    def list_models(self) -> list[ModelCard]:
        """The models served."""
        with rpc_errors(self._address):
            return list(self._stub.ListModels(ListModelsRequest(), timeout=CALL_TIMEOUT_S).models)
