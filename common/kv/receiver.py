"""The receiving end of one stream of a transfer: frames in, answers out, KV into the reserved blocks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from common.engine.kv_cache import KvCache
from common.kv.frames import PushFrame
from common.kv.paths import Inbox
from common.kv.reservations import Reservation, Reservations
from common.kv.staging import KvTransport
from common.kv.wire import checksum, layout_to_proto, slab_of, to_ranges, write_slab
from triptych.errors import FailedPreconditionError, InvalidArgumentError, TriptychError
from triptych.v1 import kv_pb2, types_pb2

CREDITS = 8
"""Chunks that may be under way: 8 MiB cover a round trip of 1 ms at 8 GB/s, and bound what a slow receiver holds."""

Deliver = Callable[[Reservation, types_pb2.GeneratedToken], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Target:
    """Where pushed KV goes. `deliver` is called once for a reservation whose every block has arrived."""

    instance_id: str
    cache: KvCache
    reservations: Reservations
    deliver: Deliver
    transport: KvTransport = "auto"
    clock: Clock = time.monotonic

    def require_layout(self, layout: types_pb2.KvLayout) -> None:
        """FailedPreconditionError unless a peer's blocks are laid out as ours."""
        ours = layout_to_proto(self.cache.layout)
        if layout != ours:
            raise FailedPreconditionError(f"KV layouts differ: here {{{ours}}}, at the peer {{{layout}}}")


class PushReceiver:
    """One stream. Any number of streams may name one reservation; only the newest transfer's are heard.

    Between looking a reservation up and writing its blocks nothing is awaited, so a chunk that comes after a cancel
    can never touch a block that somebody else got meanwhile.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._inbox: Inbox | None = None
        self._received_bytes = 0
        self._error: TriptychError = InvalidArgumentError(
            "the transfer ended before its first token", param="first_token"
        )

    async def run(self, frames: AsyncIterator[PushFrame]) -> AsyncGenerator[kv_pb2.PushResponse, None]:
        """Answers, up to the acknowledgement. Raises FailedPreconditionError or InvalidArgumentError."""
        header: kv_pb2.PushHeader | None = None
        async for frame in frames:
            if header is None:
                header = self._header(frame)
                answer = self._open(header)
            else:
                answer = self._answer(header, frame)
            yield answer
            if answer.HasField("acknowledged"):
                return
        raise self._error

    def _header(self, frame: PushFrame) -> kv_pb2.PushHeader:
        header = frame.message.header
        if frame.kind != "header":
            raise InvalidArgumentError("a transfer begins with its header", param="header")
        if header.instance_id != self._target.instance_id:
            raise FailedPreconditionError("the KV ticket was issued by another process on this address")
        self._target.require_layout(header.layout)
        return header

    def _open(self, header: kv_pb2.PushHeader) -> kv_pb2.PushResponse:
        target = self._target
        names, now = (header.reservation_id, header.transfer_id), target.clock()
        if target.reservations.was_delivered(*names, now):
            return self._acknowledgement()
        reservation = target.reservations.claim(*names, now)
        self._inbox = Inbox(header.staging, target.transport)
        opened = kv_pb2.PushOpened(
            missing=to_ranges(reservation.missing_slabs()),
            credits=CREDITS,
            staged=self._inbox.staged,
            lease_ms=round(target.reservations.ttl_s * 1000),
        )
        return kv_pb2.PushResponse(opened=opened)

    def _answer(self, header: kv_pb2.PushHeader, frame: PushFrame) -> kv_pb2.PushResponse:
        target = self._target
        reservation = target.reservations.require(header.reservation_id, header.transfer_id, target.clock())
        if frame.kind == "chunk":
            return self._write(reservation, frame)
        if frame.kind == "first_token":
            return self._finish(reservation, frame.message.first_token)
        raise InvalidArgumentError("a transfer is one header, chunks and a first token", param="message")

    def _write(self, reservation: Reservation, frame: PushFrame) -> kv_pb2.PushResponse:
        chunk, target = frame.message.chunk, self._target
        slab, layout = slab_of(chunk), target.cache.layout
        blocks = reservation.targets(slab)
        data = self._inbox.payload(frame, slab.size_bytes(layout)) if self._inbox else None
        if data is not None:
            write_slab(slab, data, target.cache, blocks)
            # Checked after the copy: a slot that changed meanwhile is then seen, and what is not marked is not used.
            if checksum(data) == chunk.crc32:
                reservation.mark(slab)
                self._received_bytes += len(data)
        target.reservations.renew(reservation, target.clock())
        return kv_pb2.PushResponse(received=kv_pb2.PushReceived(seq=chunk.seq))

    def _finish(self, reservation: Reservation, first: kv_pb2.FirstToken) -> kv_pb2.PushResponse:
        target = self._target
        if not reservation.complete:
            self._error = FailedPreconditionError(f"{reservation.missing} parts of the KV never arrived")
            return kv_pb2.PushResponse(incomplete=kv_pb2.PushIncomplete(missing=to_ranges(reservation.missing_slabs())))
        target.reservations.deliver(reservation, target.clock())
        target.deliver(reservation, first.token)
        return self._acknowledgement()

    def _acknowledgement(self) -> kv_pb2.PushResponse:
        return kv_pb2.PushResponse(acknowledged=kv_pb2.PushAcknowledged(received_bytes=self._received_bytes))
