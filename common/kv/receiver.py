"""The receiving end of one pushed stream: frames in, answers out, KV into the blocks that a ticket reserves."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from common.engine.kv_cache import KvCache
from common.kv.filling import Filling
from common.kv.frames import PushFrame
from common.kv.paths import Inbox
from common.kv.reservations import Reservation, Reservations
from common.kv.staging import KvTransport
from common.kv.wire import require_layout
from triptych.errors import FailedPreconditionError, InvalidArgumentError, TriptychError
from triptych.v1 import kv_pb2, types_pb2

Deliver = Callable[[str, types_pb2.GeneratedToken], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Target:
    """Where pushed KV goes. `deliver` is called once with the id of a reservation whose every block has arrived."""

    instance_id: str
    cache: KvCache
    reservations: Reservations
    deliver: Deliver
    transport: KvTransport = "auto"
    clock: Clock = time.monotonic


class PushReceiver:
    """One stream. Any number of streams may name one reservation; only the newest is heard.

    Between looking a reservation up and writing its blocks nothing is awaited, so a chunk that comes after a cancel
    can never touch a block that somebody else got meanwhile.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._error: TriptychError = InvalidArgumentError(
            "the transfer ended before its first token", param="first_token"
        )

    async def run(self, frames: AsyncIterator[PushFrame]) -> AsyncGenerator[kv_pb2.PushResponse, None]:
        """Answers, up to the acknowledgement.

        Raises FailedPreconditionError, InvalidArgumentError, or UnavailableError for an expired lease.
        """
        header: kv_pb2.PushHeader | None = None
        async for frame in frames:
            if header is None:
                header = self._header(frame)
                answer = self._open(header)
            elif frame.kind == "alive":
                self._renewed(header)
                continue
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
        require_layout(self._target.cache.layout, header.layout)
        return header

    def _open(self, header: kv_pb2.PushHeader) -> kv_pb2.PushResponse:
        target = self._target
        names, now = (header.reservation_id, header.transfer_id), target.clock()
        if target.reservations.was_delivered(*names, now):
            return kv_pb2.PushResponse(acknowledged=kv_pb2.PushAcknowledged())
        reservation = target.reservations.claim(*names, now)
        self._stream = reservation.stream
        self._filling = Filling(target.cache, reservation, Inbox(header.staging, target.transport))
        return kv_pb2.PushResponse(opened=self._filling.opened(target.reservations.ttl_s))

    def _answer(self, header: kv_pb2.PushHeader, frame: PushFrame) -> kv_pb2.PushResponse:
        reservation = self._renewed(header)
        if frame.kind == "chunk":
            return kv_pb2.PushResponse(received=self._filling.write(frame))
        if frame.kind == "first_token":
            return self._finish(reservation, frame.message.first_token)
        raise InvalidArgumentError("a transfer is one header, chunks and a first token", param="message")

    def _renewed(self, header: kv_pb2.PushHeader) -> Reservation:
        target, now = self._target, self._target.clock()
        reservation = target.reservations.require(header.reservation_id, self._stream, now)
        target.reservations.renew(reservation, now)
        return reservation

    def _finish(self, reservation: Reservation, first: kv_pb2.FirstToken) -> kv_pb2.PushResponse:
        target = self._target
        if incomplete := self._filling.incomplete():
            self._error = FailedPreconditionError(f"{reservation.missing} parts of the KV never arrived")
            return kv_pb2.PushResponse(incomplete=incomplete)
        target.reservations.deliver(reservation, target.clock())
        target.deliver(reservation.id, first.token)
        return kv_pb2.PushResponse(acknowledged=self._filling.acknowledged())
