"""Pushes one prompt's KV to the worker that issued the ticket, while later parts are still being computed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from common.engine.kv_cache import KvCache
from common.engine.layout import blocks_for
from common.engine.sequence import Sequence
from common.kv.wire import Slab, cut, layout_to_proto
from common.rpc.channels import Channels
from triptych.status import rpc_errors
from triptych.v1 import kv_pb2, kv_pb2_grpc, types_pb2


class KvPush:
    """One transfer. `computed(tokens)` says how much of the prompt is final; `finish` waits for the acknowledgement.

    Blocks are read when they are sent, so the sequence keeps them until `finish` or `abort` has returned.
    """

    def __init__(self, cache: KvCache, ticket: kv_pb2.KvTicket, sequence: Sequence, channels: Channels) -> None:
        self._cache = cache
        self._ticket = ticket
        self._sequence = sequence
        self._ends: asyncio.Queue[int | types_pb2.GeneratedToken] = asyncio.Queue()
        self.sent_bytes = 0
        stub = kv_pb2_grpc.KvServiceStub(channels.get(ticket.address))
        self._call = stub.Push(self._messages())
        # A task of its own: cancelling whoever waits for the acknowledgement must not cancel the call.
        self._done = asyncio.ensure_future(self._wait())
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def computed(self, tokens: int) -> None:
        """Send the blocks that are full, and the last one when the prompt is complete."""
        block_size = self._cache.layout.block_size
        complete = tokens >= self._sequence.num_prompt
        self._ends.put_nowait(blocks_for(tokens, block_size) if complete else tokens // block_size)

    async def finish(self, first: types_pb2.GeneratedToken) -> None:
        """Close the transfer and wait for the acknowledgement. Raises the receiver's error, or UnavailableError."""
        self._ends.put_nowait(first)
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait for the end of the call; ends early, with the receiver's error, when the receiver refuses."""
        await asyncio.shield(self._done)

    def abort(self) -> None:
        """Give the transfer up; idempotent, and harmless after `finish`."""
        self._call.cancel()

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
        sent = 0
        while not isinstance(end := await self._ends.get(), types_pb2.GeneratedToken):
            for slab in cut(sent, end, self._cache.layout):
                yield kv_pb2.PushRequest(chunk=self._chunk(slab))
            sent = max(sent, end)
        yield kv_pb2.PushRequest(first_token=kv_pb2.FirstToken(token=end))

    def _chunk(self, slab: Slab) -> kv_pb2.KvChunk:
        blocks = self._sequence.block_table[slab.first_block : slab.end_block]
        data = b"".join(self._cache.export(layer, blocks) for layer in slab.layers)
        self.sent_bytes += len(data)
        return kv_pb2.KvChunk(
            first_block=slab.first_block,
            num_blocks=slab.num_blocks,
            first_layer=slab.first_layer,
            num_layers=slab.num_layers,
            data=data,
            crc32=zlib.crc32(data),
        )
