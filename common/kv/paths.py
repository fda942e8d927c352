"""The seam of the bytes: how a chunk's payload gets from the sender's memory to the receiver's.

The protocol around it (have, reserve, transfer, acknowledge, release) is the same for all paths. An RDMA library would
be one more pair of `Outbox` and `Inbox`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from common.kv.frames import Frame, Message, PushFrame
from common.kv.payload import SlabData, checksum_of
from common.kv.staging import KvTransport, Staging, StagingView
from common.kv.tally import Path
from triptych.v1 import kv_pb2

SLOT_WAIT_S = 0.05
"""Longer than receivers that live keep all slots busy."""

Source = Callable[[], SlabData]
"""Says where a chunk's bytes are, at the moment when they are read. Raises when they may not be read any more."""


def path_of(staged: bool) -> Path:
    """What the path that a receiver chose is called in metrics and spans."""
    return "shared_memory" if staged else "grpc"


class Outbox(Protocol):
    """The sending end of one stream."""

    @property
    def path(self) -> Path:
        """Its name in the metrics."""

    async def pack(self, chunk: kv_pb2.KvChunk, source: Source) -> PushFrame:
        """Make `chunk` a message; `source` may be called after a wait."""

    def settle(self, seq: int) -> None:
        """The receiver is through with all chunks up to `seq`."""

    def close(self) -> None:
        """The stream is over; idempotent."""


class InlineOutbox:
    """Payloads travel in the stream, and are read from the cache itself when a message is encoded."""

    path: Path = "grpc"

    async def pack(self, chunk: kv_pb2.KvChunk, source: Source) -> PushFrame:
        """See `Outbox`."""
        views = source().views()
        chunk.xxh3 = checksum_of(views)
        return Frame(kv_pb2.PushRequest(chunk=chunk), views)

    def settle(self, seq: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""


class StagedOutbox(InlineOutbox):
    """Payloads lie in slots that the receiver has mapped; descriptors travel in the stream.

    A chunk that gets no slot within `SLOT_WAIT_S` travels in the stream: slots may be those of a receiver that hangs.
    """

    path: Path = "shared_memory"

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._used: deque[tuple[int, int]] = deque()

    async def pack(self, chunk: kv_pb2.KvChunk, source: Source) -> PushFrame:
        """See `Outbox`."""
        try:
            async with asyncio.timeout(SLOT_WAIT_S):
                chunk.slot = await self._staging.take()
        except TimeoutError:
            return await super().pack(chunk, source)
        self._used.append((chunk.seq, chunk.slot))
        data = source()
        chunk.xxh3 = data.copy_to(self._staging.view(chunk.slot, data.size))
        return Frame(kv_pb2.PushRequest(chunk=chunk))

    def settle(self, seq: int) -> None:
        """Slots of answered chunks are free."""
        while self._used and self._used[0][0] <= seq:
            self._staging.give(self._used.popleft()[1])

    def close(self) -> None:
        """All slots are free. A receiver that still reads one finds a wrong checksum."""
        while self._used:
            self._staging.give(self._used.popleft()[1])


class Inbox:
    """The receiving end of one stream: finds a chunk's payload wherever it lies."""

    def __init__(self, offer: kv_pb2.StagingOffer, transport: KvTransport) -> None:
        self._view = None if transport == "grpc" else StagingView.open(offer)

    @property
    def staged(self) -> bool:
        """True if chunks may lie in slots."""
        return self._view is not None

    def payload(self, frame: Frame[Message], size: int) -> memoryview | None:
        """The chunk's `size` bytes; None when it has not as many. Slots may change while they are read."""
        chunk = frame.message.chunk
        if chunk.HasField("slot"):
            return self._view.read(chunk.slot, size) if self._view else None
        if len(frame.payload) == 1 and len(frame.payload[0]) == size:
            return memoryview(frame.payload[0])
        return memoryview(b"".join(frame.payload)) if frame.size_bytes == size else None
