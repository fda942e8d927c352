"""The asking end: which blocks a peer has cached, and their KV into blocks of our own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from common.engine.kv_cache import KvCache
from common.kv.filling import Filling
from common.kv.frames import PullFrame
from common.kv.links import Links, PullLink
from common.kv.paths import Inbox, path_of
from common.kv.reservations import Reservation
from common.kv.resuming import resuming
from common.kv.session import ANSWER_S
from common.kv.staging import KvTransport
from common.kv.tally import Path
from common.kv.wire import layout_to_proto
from common.tracing import outgoing
from triptych.errors import FailedPreconditionError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import kv_pb2, kv_pb2_grpc

HAVE_S = 1.0
FETCH_S = 30.0
"""A prompt waits while peers are asked; a peer that hangs must not cost it more."""


async def have(channel: grpc.aio.Channel, hashes: Sequence[bytes]) -> int:
    """How many leading blocks a peer has cached. Raises what the peer raises, or UnavailableError."""
    stub, request = kv_pb2_grpc.KvServiceStub(channel), kv_pb2.HaveRequest(block_hashes=hashes)
    with rpc_errors():
        answer = await stub.Have(request, timeout=HAVE_S, metadata=outgoing())
    return answer.num_blocks


@dataclass(slots=True)
class KvPull:
    """Fills pool blocks `blocks` of `cache` with what `hashes` name. `answer_s`: longest silence of the peer.

    `path` is the one that the last stream took.
    """

    links: Links
    cache: KvCache
    hashes: Sequence[bytes]
    blocks: Sequence[int]
    mode: KvTransport = "auto"
    answer_s: float = ANSWER_S
    path: Path = "grpc"
    _reservation: Reservation | None = None

    async def fetch(self, address: str) -> int:
        """How many leading blocks are complete. A broken stream is resumed.

        Raises what the peer raises, or UnavailableError; the blocks then hold nothing of use.
        """
        try:
            async with asyncio.timeout(FETCH_S):
                return await resuming(lambda: self._attempt(address), lambda: math.inf)
        except TimeoutError as error:
            raise UnavailableError(f"a peer's KV did not come within {FETCH_S} s") from error

    async def _attempt(self, address: str) -> int:
        link = self.links.pull(address)
        try:
            begin = kv_pb2.PullBegin(block_hashes=self.hashes, layout=layout_to_proto(self.cache.layout))
            await link.send(kv_pb2.PullRequest(begin=begin))
            return await self._receive(link)
        finally:
            link.close()

    async def _receive(self, link: PullLink) -> int:
        header = await self._next(link)
        if header.kind != "header":
            raise FailedPreconditionError("a peer's KV begins without a header")
        reservation = self._reserve(header.message.header.num_blocks)
        inbox = Inbox(header.message.header.staging, self.mode)
        self.path = path_of(inbox.staged)
        filling = Filling(self.cache, reservation, inbox)
        answer = kv_pb2.PullRequest(opened=filling.opened(FETCH_S))
        while True:
            await link.send(answer)
            if answer.HasField("acknowledged"):
                return len(reservation.blocks)
            answer = _answer(filling, await self._next(link))

    def _reserve(self, found: int) -> Reservation:
        """The blocks that will be filled: resumed ones are those of the first stream."""
        if self._reservation is None:
            blocks = tuple(self.blocks[:found])
            self._reservation = Reservation("", blocks, 0, self.cache.layout.layers, math.inf)
        if found < len(self._reservation.blocks):
            raise FailedPreconditionError("blocks were evicted at the peer before their KV had come")
        return self._reservation

    async def _next(self, link: PullLink) -> PullFrame:
        try:
            async with asyncio.timeout(self.answer_s):
                return await link.receive()
        except TimeoutError as error:
            raise UnavailableError(f"no KV from a peer for {self.answer_s} s") from error


def _answer(filling: Filling, frame: PullFrame) -> kv_pb2.PullRequest:
    if frame.kind == "chunk":
        return kv_pb2.PullRequest(received=filling.write(frame))
    if frame.kind != "end":
        raise FailedPreconditionError("a peer's KV is one header, chunks and an end")
    if incomplete := filling.incomplete():
        return kv_pb2.PullRequest(incomplete=incomplete)
    return kv_pb2.PullRequest(acknowledged=filling.acknowledged())
