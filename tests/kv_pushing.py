"""A sender and a receiver of KV without an engine, and faults in between."""

from __future__ import annotations

from common.kv.sender import KvPush
from common.kv.staging import KvTransport
from common.kv.transport import Transport
from tests.kv_ends import FIRST, LAYOUT, Receiver, content, noisy_cache, prompt_of
from tests.kv_links import Fault, FaultyLinks, MemoryLinks
from triptych.v1 import kv_pb2

SOURCE = noisy_cache(32, seed=1)
FROM, TO = list(range(12)), [31, 4, 17, 5, 6, 7, 30, 29, 1, 2, 3, 20]
CHUNK_BYTES = 3 * LAYOUT.bytes_per_layer_block


class Ends:
    """One sender, one receiver, faults in between."""

    def __init__(self, mode: KvTransport, *faults: Fault, answer_s: float = 5.0) -> None:
        self.receiver = Receiver()
        self.links = FaultyLinks(MemoryLinks(self.receiver.target), *faults)
        self.transport = Transport(LAYOUT, mode, CHUNK_BYTES)
        self.answer_s = answer_s
        self.ticket = self.receiver.ticket(TO)

    def push(self, ticket: kv_pb2.KvTicket | None = None, blocks: list[int] = FROM) -> KvPush:
        return KvPush(SOURCE, ticket or self.ticket, prompt_of(blocks), self.links, self.transport, self.answer_s)

    async def deliver(self) -> KvPush:
        push = self.push()
        push.ready(len(FROM) * LAYOUT.block_size)
        await push.finish(FIRST)
        return push

    def arrived(self) -> bool:
        return content(self.receiver.cache, TO) == content(SOURCE, FROM) and len(self.receiver.delivered) == 1
