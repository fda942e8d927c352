"""Pushes one prompt's KV to the worker that issued the ticket, layer by layer, while the rest is being computed."""

from __future__ import annotations

import asyncio
import math
import secrets

from common.engine.kv_cache import KvCache
from common.engine.layout import blocks_for
from common.engine.sequence import Sequence
from common.kv.links import Links
from common.kv.outgoing import Outgoing
from common.kv.payload import SlabData
from common.kv.resuming import resuming
from common.kv.session import ANSWER_S, PushSession, Supply
from common.kv.tally import Path
from common.kv.transport import Transport
from common.kv.wire import Slab, layout_to_proto
from common.tracing import span
from triptych.errors import RequestCancelledError
from triptych.v1 import kv_pb2, types_pb2


class KvPush:
    """One transfer. Blocks that the ticket's worker holds are left out; a broken stream is resumed.

    Blocks are read when they are sent, so the sequence keeps them until `finish` or `abort` has returned.
    """

    def __init__(
        self,
        cache: KvCache,
        ticket: kv_pb2.KvTicket,
        sequence: Sequence,
        links: Links,
        transport: Transport,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._cache = cache
        self._sequence = sequence
        self._ticket = ticket
        self._links = links
        self._transport = transport
        self._answer_s = answer_s
        self._transfer_id = secrets.token_hex(16)
        self._lease_end = math.inf
        self._closed = False
        self.path: Path = "grpc"
        self._supply = Supply(Outgoing(cache.layout, ticket.held_blocks, transport.chunk_bytes), self._data)
        # A task of its own: cancelling whoever waits for the acknowledgement must not cancel the transfer.
        self._done = asyncio.ensure_future(self._transfer())
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def sent_bytes(self) -> int:
        """KV bytes sent, those sent again included."""
        return self._supply.sent_bytes

    def ready(self, tokens: int) -> None:
        """The prompt's first `tokens` tokens are final in every layer: send their full blocks, if not sent."""
        self._ready(range(self._cache.layout.layers), tokens)

    def layer_ready(self, layer: int, tokens: int) -> None:
        """The first `tokens` tokens are final in `layer`."""
        self._ready([layer], tokens)

    def renew(self) -> None:
        """Prefill lives: prolong decode's lease."""
        self._supply.alive = True
        self._supply.changed.set()

    async def finish(self, first: types_pb2.GeneratedToken) -> None:
        """Close the transfer and wait for the acknowledgement. Raises the receiver's error, or UnavailableError."""
        self._supply.first = first
        self._supply.changed.set()
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait for the end of the transfer; ends early, with the receiver's error, when the receiver refuses."""
        await asyncio.shield(self._done)

    def abort(self) -> None:
        """Give the transfer up; idempotent, and harmless after `finish`."""
        self._closed = True
        self._done.cancel()

    def _ready(self, layers: range | list[int], tokens: int) -> None:
        block_size = self._cache.layout.block_size
        complete = tokens >= self._sequence.num_given
        self._supply.outgoing.ready(layers, blocks_for(tokens, block_size) if complete else tokens // block_size)
        self._supply.changed.set()

    def _data(self, slab: Slab) -> SlabData:
        if self._closed:
            # The cancelled task may have one more turn, in which the blocks are somebody else's.
            raise RequestCancelledError("the transfer was given up")
        return SlabData(slab, self._cache, self._sequence.block_table[slab.first_block : slab.end_block])

    async def _transfer(self) -> None:
        with span("kv push", held_blocks=self._ticket.held_blocks) as current:
            try:
                await resuming(self._attempt, lambda: self._lease_end)
            finally:
                blocks = self.sent_bytes // self._cache.layout.bytes_per_block
                current.set_attributes({"path": self.path, "bytes": self.sent_bytes, "blocks": blocks})

    async def _attempt(self) -> None:
        link = self._links.push(self._ticket.address)
        session = PushSession(self._supply, link, self._answer_s)
        try:
            opened = await session.open(self._header())
            if opened is None:
                return
            outbox = self._transport.outbox(opened)
            self.path = outbox.path
            await session.run(outbox)
        finally:
            if session.lease_end < math.inf:
                self._lease_end = session.lease_end
            link.close()

    def _header(self) -> kv_pb2.PushHeader:
        return kv_pb2.PushHeader(
            reservation_id=self._ticket.reservation_id,
            instance_id=self._ticket.instance_id,
            layout=layout_to_proto(self._cache.layout),
            transfer_id=self._transfer_id,
            staging=self._transport.offer(),
        )
