"""The giving end of a pull: cached blocks by hash, sent as a push sends them, over the asking peer's stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from common.engine.kv_cache import KvCache
from common.engine.prefix_cache import PrefixCache
from common.kv.frames import Frame, PullFrame, PushFrame
from common.kv.outgoing import Outgoing
from common.kv.payload import SlabData
from common.kv.session import ANSWER_S, PushSession, Supply
from common.kv.transport import Transport
from common.kv.wire import Slab, require_layout
from triptych.errors import InvalidArgumentError, UnavailableError
from triptych.v1 import kv_pb2, types_pb2

Requests = AsyncIterator[kv_pb2.PullRequest]


@dataclass(frozen=True, slots=True)
class Shelf:
    """What a worker gives away: the blocks of its prefix cache, over a transport."""

    cache: KvCache
    prefix: PrefixCache
    transport: Transport
    answer_s: float = ANSWER_S

    @contextmanager
    def holding(self, hashes: Sequence[bytes]) -> Iterator[list[int]]:
        """The leading blocks of `hashes` that are cached, kept from eviction meanwhile."""
        blocks = self.prefix.match(hashes)
        self.prefix.share(blocks)
        try:
            yield blocks
        finally:
            self.prefix.free(blocks)


async def serve_pull(requests: Requests, shelf: Shelf) -> AsyncGenerator[PullFrame, None]:
    """Header, chunks, end. The blocks are held until the peer has them, leaves, or is silent for `shelf.answer_s`.

    Raises InvalidArgumentError, FailedPreconditionError or UnavailableError.
    """
    begin = await _begin(requests)
    require_layout(shelf.cache.layout, begin.layout)
    link = _PulledLink(requests)
    # A task of its own: it lets the blocks go in time also while a frame is not taken.
    sending = asyncio.ensure_future(_hold_and_send(link, shelf, begin.block_hashes))
    # Also when no block could be held.
    sending.add_done_callback(lambda _: link.close())
    try:
        while frame := await link.next():
            yield frame
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _begin(requests: Requests) -> kv_pb2.PullBegin:
    async for request in requests:
        if request.WhichOneof("message") == "begin":
            return request.begin
        break
    raise InvalidArgumentError("the first message must be `begin`", param="begin")


async def _hold_and_send(link: _PulledLink, shelf: Shelf, hashes: Sequence[bytes]) -> None:
    # Closed first: a frame that lies there reads blocks that are about to be somebody else's.
    with shelf.holding(hashes) as blocks, closing(link):
        link.num_blocks = len(blocks)
        await _send(link, shelf, blocks)


async def _send(link: _PulledLink, shelf: Shelf, blocks: list[int]) -> None:
    layout = shelf.cache.layout
    outgoing = Outgoing(layout, 0, shelf.transport.chunk_bytes)
    outgoing.ready(range(layout.layers), len(blocks))

    def data(slab: Slab) -> SlabData:
        return SlabData(slab, shelf.cache, blocks[slab.first_block : slab.end_block])

    session = PushSession(Supply(outgoing, data, types_pb2.GeneratedToken()), link, shelf.answer_s)
    opened = await session.open(kv_pb2.PushHeader(staging=shelf.transport.offer()))
    if opened is not None:
        await session.run(shelf.transport.outbox(opened))


class _PulledLink:
    """A `PushLink` over the stream of a pull of `num_blocks` blocks."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.num_blocks = 0
        self._frames: asyncio.Queue[PullFrame | None] = asyncio.Queue(1)

    async def next(self) -> PullFrame | None:
        """The next message for the peer; None after the last."""
        return await self._frames.get()

    async def send(self, message: PushFrame) -> None:
        """See `Link`."""
        await self._frames.put(self._pulled(message))

    async def receive(self) -> kv_pb2.PushResponse:
        """See `Link`."""
        async for request in self._requests:
            return _pushed(request)
        raise UnavailableError("the peer that pulls KV has left")

    def close(self) -> None:
        """See `Link`; idempotent. Nobody sends any more; a frame that nobody has taken is of no use."""
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(None)

    def _pulled(self, frame: PushFrame) -> PullFrame:
        if frame.kind == "chunk":
            return Frame(kv_pb2.PullResponse(chunk=frame.message.chunk), frame.payload)
        if frame.kind == "header":
            header = kv_pb2.PullHeader(num_blocks=self.num_blocks, staging=frame.message.header.staging)
            return Frame(kv_pb2.PullResponse(header=header))
        return Frame(kv_pb2.PullResponse(end=kv_pb2.PullEnd()))


def _pushed(request: kv_pb2.PullRequest) -> kv_pb2.PushResponse:
    kind = request.WhichOneof("message")
    if kind == "opened":
        return kv_pb2.PushResponse(opened=request.opened)
    if kind == "received":
        return kv_pb2.PushResponse(received=request.received)
    if kind == "incomplete":
        return kv_pb2.PushResponse(incomplete=request.incomplete)
    if kind == "acknowledged":
        return kv_pb2.PushResponse(acknowledged=request.acknowledged)
    raise InvalidArgumentError("a pull is one begin and answers", param="message")
