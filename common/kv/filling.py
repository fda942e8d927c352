"""What a stream of chunks does to reserved blocks, whoever asked for the stream."""

from __future__ import annotations

from common.engine.kv_cache import KvCache
from common.kv.frames import Frame, Message
from common.kv.paths import Inbox
from common.kv.payload import SlabData
from common.kv.reservations import Reservation
from common.kv.wire import slab_of, to_ranges
from triptych.v1 import kv_pb2

CREDITS = 4
"""Chunks that may be under way: up to 32 MiB cover a round trip of 4 ms at 8 GB/s, and stay in a large cache."""


class Filling:
    """Writes one stream's chunks. `received_bytes` counts what arrived undamaged."""

    def __init__(self, cache: KvCache, reservation: Reservation, inbox: Inbox) -> None:
        self._cache = cache
        self._reservation = reservation
        self._inbox = inbox
        self.received_bytes = 0

    def opened(self, lease_s: float) -> kv_pb2.PushOpened:
        """The answer to a header."""
        missing = to_ranges(self._reservation.missing_slabs())
        lease_ms = round(lease_s * 1000)
        return kv_pb2.PushOpened(missing=missing, credits=CREDITS, staged=self._inbox.staged, lease_ms=lease_ms)

    def write(self, frame: Frame[Message]) -> kv_pb2.PushReceived:
        """Take a chunk in. A damaged one is answered, too: what is missing is asked for at the end.

        Raises InvalidArgumentError when the chunk reaches outside the reservation.
        """
        chunk, reservation = frame.message.chunk, self._reservation
        slab = slab_of(chunk)
        blocks = reservation.targets(slab)
        # What is there stays: a chunk that comes again may lie in a slot that holds something else by now.
        if not reservation.has(slab):
            data = SlabData(slab, self._cache, blocks)
            payload = self._inbox.payload(frame, data.size)
            if payload is not None:
                good = data.copy_from(payload) == chunk.xxh3
                reservation.mark(slab, good)
                self.received_bytes += data.size if good else 0
        return kv_pb2.PushReceived(seq=chunk.seq)

    def incomplete(self) -> kv_pb2.PushIncomplete | None:
        """The answer to the end of a stream that lost something; None when all is there."""
        if self._reservation.complete:
            return None
        return kv_pb2.PushIncomplete(missing=to_ranges(self._reservation.missing_slabs()))

    def acknowledged(self) -> kv_pb2.PushAcknowledged:
        """The answer to the end of a stream that lost nothing."""
        return kv_pb2.PushAcknowledged(received_bytes=self.received_bytes)
