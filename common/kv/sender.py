"""Pushes one prompt's KV to the worker that issued the ticket, layer by layer, while the rest is being computed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from common.engine.kv_cache import KvCache
from common.engine.layout import blocks_for
from common.engine.sequence import Sequence
from common.kv.wire import MESSAGE_BYTES, Slab, cut, layout_to_proto, to_chunk
from common.rpc.channels import Channels
from triptych.status import rpc_errors
from triptych.v1 import kv_pb2, kv_pb2_grpc, types_pb2


class KvPush:
    """One transfer. Blocks that the ticket's worker holds are left out.

    Blocks are read when they are sent, so the sequence keeps them until `finish` or `abort` has returned.
    """

    def __init__(self, cache: KvCache, ticket: kv_pb2.KvTicket, sequence: Sequence, channels: Channels) -> None:
        self._cache = cache
        self._ticket = ticket
        self._sequence = sequence
        self._queued = ticket.held_blocks
        self._slabs: deque[Slab] = deque()
        self._first: types_pb2.GeneratedToken | None = None
        self._wake = asyncio.Event()
        self.sent_bytes = 0
        stub = kv_pb2_grpc.KvServiceStub(channels.get(ticket.address))
        self._call = stub.Push(self._messages())
        # A task of its own: cancelling whoever waits for the acknowledgement must not cancel the call.
        self._done = asyncio.ensure_future(self._wait())
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def ready(self, tokens: int) -> None:
        """The prompt's first `tokens` tokens are final in every layer: send their full blocks, if not sent."""
        end = self._end_block(tokens)
        self._queue(Slab(0, self._cache.layout.layers, self._queued, end - self._queued))
        self._queued = max(self._queued, end)

    def layer_ready(self, layer: int, tokens: int) -> None:
        """The first `tokens` tokens are final in `layer`; layers come in order, and all of them."""
        end = self._end_block(tokens)
        self._queue(Slab(layer, 1, self._queued, end - self._queued))
        if layer == self._cache.layout.layers - 1:
            self._queued = max(self._queued, end)

    async def finish(self, first: types_pb2.GeneratedToken) -> None:
        """Close the transfer and wait for the acknowledgement. Raises the receiver's error, or UnavailableError."""
        self._first = first
        self._wake.set()
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait for the end of the call; ends early, with the receiver's error, when the receiver refuses."""
        await asyncio.shield(self._done)

    def abort(self) -> None:
        """Give the transfer up; idempotent, and harmless after `finish`."""
        self._call.cancel()

    def _end_block(self, tokens: int) -> int:
        block_size = self._cache.layout.block_size
        complete = tokens >= self._sequence.num_prompt
        return blocks_for(tokens, block_size) if complete else tokens // block_size

    def _queue(self, slab: Slab) -> None:
        if slab.num_blocks > 0:
            self._slabs.append(slab)
            self._wake.set()

    async def _wait(self) -> None:
        with rpc_errors(f"decode at {self._ticket.address}"):
            await self._call

    async def _messages(self) -> AsyncIterator[kv_pb2.PushRequest]:
        ticket = self._ticket
        yield kv_pb2.PushRequest(
            header=kv_pb2.PushHeader(
                reservation_id=ticket.reservation_id,
                instance_id=ticket.instance_id,
                layout=layout_to_proto(self._cache.layout),
            )
        )
        while self._slabs or self._first is None:
            if not self._slabs:
                self._wake.clear()
                await self._wake.wait()
                continue
            for slab in cut(self._take(), self._cache.layout):
                self.sent_bytes += slab.size_bytes(self._cache.layout)
                blocks = self._sequence.block_table[slab.first_block : slab.end_block]
                yield kv_pb2.PushRequest(chunk=to_chunk(slab, self._cache, blocks))
        yield kv_pb2.PushRequest(first_token=kv_pb2.FirstToken(token=self._first))

    def _take(self) -> Slab:
        """The next slab, with following layers joined while the message stays small."""
        slab = self._slabs.popleft()
        while self._slabs and (joined := slab.joined(self._slabs[0])):
            if joined.size_bytes(self._cache.layout) > MESSAGE_BYTES:
                break
            slab = joined
            self._slabs.popleft()
        return slab
