"""The blocking client. `triptych.aio` is its asyncio twin; what both decide is in `triptych.exchange`."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from types import TracebackType
from typing import Self, Unpack

from triptych.connection import CALL_TIMEOUT_S, Connection
from triptych.errors import TriptychError
from triptych.exchange import Exchange, GenerateOptions
from triptych.messages import Image, Prompt
from triptych.retry import Retry, Tries
from triptych.streams import AnswerStream, upload
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


class Client:
    """A connection to one router, `host:port`. Safe to share between threads; close it, or use it in a `with`.

    `api_key` where the router has a keys file; in plain text without `tls`. ConfigError when its files are not usable.
    """

    def __init__(
        self, address: str, *, api_key: str | None = None, tls: Tls | None = None, retry: Retry | None = None
    ) -> None:
        self._retry = retry or Retry()
        self._connection = Connection(address, self._retry, api_key, tls)
        self._stub = self._connection.stub

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Answers on their way end with RequestCancelledError, later calls with ClientClosedError; harmless twice."""
        self._connection.close()

    def generate(self, prompt: Prompt, model: str = "", **options: Unpack[GenerateOptions]) -> AnswerStream:
        """Ask for one answer. The request is sent when the stream is first read.

        Pictures travel by name; exactly those that the server lacks are uploaded, once each. An empty `model` means
        the only one served. Until the answer begins, what fails for now is tried again as `retry` says. Raises
        InvalidArgumentError here, everything else while reading.
        """
        return AnswerStream(self._connection, Exchange(prompt, model, options, self._retry))

    def tokenize(self, prompt: Prompt, model: str = "", **options: Unpack[GenerateOptions]) -> TokenizeResponse:
        """The prompt as `generate` would give it to the model: token ids, every picture expanded."""
        exchange = Exchange(prompt, model, options, self._retry)
        while True:
            upload(self._connection, exchange)
            try:
                with self._connection.errors():
                    asked = TokenizeRequest(request=exchange.request)
                    return self._stub.Tokenize(asked, timeout=exchange.left_s())
            except TriptychError as error:
                time.sleep(exchange.on_failure(error))

    def put_image(self, image: Image, cache_salt: str | None = None) -> ImageRecord:
        """Make a picture known to the server; its bytes are sent only when they are missing there."""
        known = self.find_images([image.digest], cache_salt).found
        if known:
            return known[0]
        send = lambda: self._stub.PutImage(pieces(image, cache_salt), timeout=CALL_TIMEOUT_S)  # noqa: E731
        return self._connection.call(send).image

    def find_images(self, digests: list[str], cache_salt: str | None = None) -> FindImagesResponse:
        """Which of these pictures (file digests, at most 1024) are known there, and which are missing."""
        asked = find_request(digests, cache_salt)
        return self._connection.call(lambda: self._stub.FindImages(asked, timeout=CALL_TIMEOUT_S))

    def list_images(self, cache_salt: str | None = None) -> ListImagesResponse:
        """All pictures known in the scope, the latest used first, and the groups of those that look the same."""
        listing = ListImagesResponse()
        while True:
            asked = list_request(cache_salt, listing.next_page_token)
            page = self._list_images(asked)
            listing.MergeFrom(page)
            listing.next_page_token = page.next_page_token
            if not page.next_page_token:
                return listing

    def explain(self, last: int = 20, session_id: str = "", cache_salt: str | None = None) -> list[Explanation]:
        """What the caches did for the latest requests, and where their prompts diverged; the latest first."""
        asked = ExplainRequest(last=last, session_id=session_id, cache_salt=cache_salt)
        return list((self._connection.call(lambda: self._stub.Explain(asked, timeout=CALL_TIMEOUT_S))).requests)

    def list_models(self) -> list[ModelCard]:
        """The models served."""
        asked = ListModelsRequest()
        return list(self._connection.call(lambda: self._stub.ListModels(asked, timeout=CALL_TIMEOUT_S)).models)

    def watch_cluster(self, every_s: float = 1.0) -> Generator[WatchClusterResponse, None, None]:
        """The cluster as the router sees it, again and again, until the iterator is closed.

        Goes on with another connection when a router leaves; `retry` bounds the tries between two snapshots.
        """
        tries = Tries(self._retry)
        while True:
            try:
                with closing(self._watch(every_s)) as snapshots:
                    for snapshot in snapshots:
                        yield snapshot
                        tries = Tries(self._retry)
                return
            except TriptychError as error:
                time.sleep(tries.pause_s(error))

    def _watch(self, every_s: float) -> Generator[WatchClusterResponse, None, None]:
        with self._connection.errors():
            call = self._stub.WatchCluster(WatchClusterRequest(every_ms=round(every_s * 1000)))
            try:
                yield from call
            finally:
                call.cancel()

    def _list_images(self, asked: ListImagesRequest) -> ListImagesResponse:
        return self._connection.call(lambda: self._stub.ListImages(asked, timeout=CALL_TIMEOUT_S))
