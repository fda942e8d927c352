"""KvService: writes arriving chunks into reserved blocks and hands complete prompts over."""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from common.engine.kv_cache import KvCache
from common.kv.reservations import Reservation, Reservations
from common.kv.wire import Slab, layout_to_proto
from triptych.errors import FailedPreconditionError, InvalidArgumentError
from triptych.v1 import kv_pb2, kv_pb2_grpc, types_pb2

FULL_NAME = "triptych.v1.KvService"
Deliver = Callable[[Reservation, types_pb2.GeneratedToken], None]


class KvServicer(kv_pb2_grpc.KvServiceServicer):
    """`deliver` is called once for a reservation whose every block has arrived; then the transfer is acknowledged.

    Between looking a reservation up and writing its blocks nothing is awaited, so a chunk that comes after a cancel
    can never touch a block that somebody else got meanwhile.
    """

    def __init__(self, instance_id: str, cache: KvCache, reservations: Reservations, deliver: Deliver) -> None:
        self._instance_id = instance_id
        self._cache = cache
        self._reservations = reservations
        self._deliver = deliver

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
        if header.layout != layout_to_proto(self._cache.layout):
            ours = self._cache.layout
            raise FailedPreconditionError(f"KV layouts differ: here {ours}, at the sender {header.layout}")
        self._reservations.require(header.reservation_id, time.monotonic())
        return header

    def _write(self, reservation_id: str, chunk: kv_pb2.KvChunk) -> int:
        reservation = self._reservations.require(reservation_id, time.monotonic())
        slab = Slab(chunk.first_layer, chunk.num_layers, chunk.first_block, chunk.num_blocks)
        blocks = reservation.targets(slab)
        data = memoryview(chunk.data)
        expected = slab.num_layers * slab.num_blocks * self._cache.layout.bytes_per_layer_block
        if len(data) != expected or zlib.crc32(data) != chunk.crc32:
            raise InvalidArgumentError(f"a KV chunk is damaged: {len(data)} of {expected} bytes", param="chunk")
        stride = expected // slab.num_layers
        for index, layer in enumerate(slab.layers):
            self._cache.load(layer, blocks, data[index * stride : (index + 1) * stride])
        reservation.mark(slab)
        self._reservations.renew(reservation, time.monotonic())
        return expected

    def _finish(self, reservation_id: str, first: kv_pb2.FirstToken) -> None:
        reservation = self._reservations.require(reservation_id, time.monotonic())
        if not reservation.complete:
            raise FailedPreconditionError(f"{reservation.missing} parts of the KV never arrived")
        self._reservations.close(reservation_id)
        self._deliver(reservation, first.token)
