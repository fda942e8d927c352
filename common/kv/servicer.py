"""KvService on the wire: what is cached here, and KV that arrives for a reservation."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from common.engine.kv_cache import KvCache
from common.engine.prefix_cache import PrefixCache
from common.kv.fetching import stream_blocks
from common.kv.reservations import Reservation, Reservations
from common.kv.wire import layout_to_proto, slab_of, write_chunk
from triptych.errors import FailedPreconditionError, InvalidArgumentError
from triptych.v1 import kv_pb2, kv_pb2_grpc, types_pb2

FULL_NAME = "triptych.v1.KvService"
Context = Any
Deliver = Callable[[Reservation, types_pb2.GeneratedToken], None]


class KvServicer(kv_pb2_grpc.KvServiceServicer):
    """`deliver` is called once for a reservation whose every block has arrived; then the transfer is acknowledged.

    Between looking a reservation up and writing its blocks nothing is awaited, so a chunk that comes after a cancel
    can never touch a block that somebody else got meanwhile.
    """

    def __init__(
        self, instance_id: str, cache: KvCache, prefix: PrefixCache, reservations: Reservations, deliver: Deliver
    ) -> None:
        self._instance_id = instance_id
        self._cache = cache
        self._prefix = prefix
        self._reservations = reservations
        self._deliver = deliver

    async def Have(
        self, request: kv_pb2.HaveRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> kv_pb2.HaveResponse:
        """Count the leading cached blocks."""
        return kv_pb2.HaveResponse(num_blocks=len(self._prefix.match(request.block_hashes)))

    async def Fetch(
        self, request: kv_pb2.FetchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[kv_pb2.FetchResponse]:
        """Stream the leading cached blocks."""
        self._require_layout(request.layout)
        async with aclosing(stream_blocks(request.block_hashes, self._prefix, self._cache)) as messages:
            async for message in messages:
                yield message

    async def Push(
        self, request_iterator: AsyncIterator[kv_pb2.PushRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> kv_pb2.PushResponse:
        """Header, chunks, first token; see the proto."""
        received = 0
        header: kv_pb2.PushHeader | None = None
        async for message in request_iterator:
            kind = message.WhichOneof("message")
            if header is None:
                header = self._open(message, kind)
            elif kind == "chunk":
                received += self._write(header.reservation_id, message.chunk)
            elif kind == "first_token":
                self._finish(header.reservation_id, message.first_token)
                return kv_pb2.PushResponse(received_bytes=received)
            else:
                raise InvalidArgumentError("a transfer has one header", param="header")
        raise InvalidArgumentError("the transfer ended before its first token", param="first_token")

    def _open(self, message: kv_pb2.PushRequest, kind: str | None) -> kv_pb2.PushHeader:
        header = message.header
        if kind != "header":
            raise InvalidArgumentError("a transfer begins with its header", param="header")
        if header.instance_id != self._instance_id:
            raise FailedPreconditionError("the KV ticket was issued by another process on this address")
        self._require_layout(header.layout)
        self._reservations.require(header.reservation_id, time.monotonic())
        return header

    def _require_layout(self, layout: types_pb2.KvLayout) -> None:
        ours = layout_to_proto(self._cache.layout)
        if layout != ours:
            raise FailedPreconditionError(f"KV layouts differ: here {{{ours}}}, at the peer {{{layout}}}")

    def _write(self, reservation_id: str, chunk: kv_pb2.KvChunk) -> int:
        reservation = self._reservations.require(reservation_id, time.monotonic())
        slab = slab_of(chunk)
        write_chunk(chunk, self._cache, reservation.targets(slab))
        reservation.mark(slab)
        self._reservations.renew(reservation, time.monotonic())
        return len(chunk.data)

    def _finish(self, reservation_id: str, first: kv_pb2.FirstToken) -> None:
        reservation = self._reservations.require(reservation_id, time.monotonic())
        if not reservation.complete:
            raise FailedPreconditionError(f"{reservation.missing} parts of the KV never arrived")
        self._reservations.close(reservation_id)
        self._deliver(reservation, first.token)
