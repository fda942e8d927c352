"""Where prefill gets embeddings: its memory, the store, or the encoder that holds one past the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from torch import Tensor

from common.metrics.series import Series, counter
from common.rpc.channels import Channels
from common.store.embeddings import EmbeddingStore
from common.store.metrics import read_series
from common.tracing import outgoing
from triptych.errors import NotFoundError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import encoder_pb2, encoder_pb2_grpc, prefill_pb2

FETCH_TIMEOUT_S = 30.0


class EmbeddingSource:
    """Verified tensors by announcement; UnavailableError when they are nowhere, and the request begins anew."""

    def __init__(self, store: EmbeddingStore, channels: Channels) -> None:
        self._store, self._channels = store, channels
        self._fetched = 0

    def series(self) -> Iterable[Series]:
        """For `/metrics`."""
        yield from read_series(asdict(self._store.counters), "prefill")
        yield counter("prefill_direct", "Embeddings fetched from an encoder, past the store", self._fetched)

    def degraded(self) -> list[str]:
        """What does not work now, one sentence each."""
        return self._store.counters.degraded()

    async def get(self, ready: prefill_pb2.ImageReady, rows: int, request: str) -> Mapping[str, Tensor]:
        """The tensors of `rows` rows, on the CPU; the lease of `request` ends."""
        if ready.held_at:
            tensors = await self._held(ready, rows)
        else:
            tensors = await self._store.get(ready.embedding_key, rows, request)
        if tensors is None:
            raise UnavailableError("an embedding vanished before prefill read it", retry_after_s=0.0)
        return tensors

    async def unlease(self, key: str, request: str) -> None:
        """The tensors will not be read, wherever they are: only the lease of `request` ends. Never raises."""
        with contextlib.suppress(UnavailableError):
            await self._store.unlease(key, request)

    async def _held(self, ready: prefill_pb2.ImageReady, rows: int) -> Mapping[str, Tensor] | None:
        if (known := self._store.recall(ready.embedding_key, rows)) is not None:
            return known
        try:
            value = await self._fetch(ready)
        except NotFoundError:
            return None
        self._fetched += 1
        return await self._store.adopt(ready.embedding_key, value, rows)

    async def _fetch(self, ready: prefill_pb2.ImageReady) -> bytes:
        stub = encoder_pb2_grpc.EncoderServiceStub(self._channels.get(ready.held_at))
        request = encoder_pb2.FetchEmbeddingRequest(embedding_key=ready.embedding_key)
        with rpc_errors("encoder"):
            call = stub.FetchEmbedding(request, timeout=FETCH_TIMEOUT_S, metadata=outgoing())
            pieces = [piece.chunk async for piece in call]
        return b"".join(pieces)
