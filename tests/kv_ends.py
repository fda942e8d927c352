"""The two ends of a KV transfer without an engine: caches full of noise, tickets, and what was delivered."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np

from common.engine.blocks import BlockPool
from common.engine.kv_cache import KvCache
from common.engine.layout import KvLayout
from common.engine.prefix_cache import PrefixCache
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import Positions
from common.kv.links import NAME
from common.kv.receiver import Target
from common.kv.reservations import Reservations
from common.kv.servicer import KvServicer, add_kv_service
from common.kv.serving import Shelf
from common.kv.staging import KvTransport
from common.kv.transport import Transport
from common.kv.wire import layout_to_proto
from common.rpc.server import RpcServer
from triptych.v1 import kv_pb2, types_pb2

LAYOUT = KvLayout("float32", layers=4, kv_heads=2, head_dim=16, block_size=16)
SHELF_CHUNK_BYTES = 3 * LAYOUT.bytes_per_layer_block
HASHES = [bytes([n]) * 32 for n in range(20)]
FIRST = types_pb2.GeneratedToken(token_id=5)


def noisy_cache(blocks: int, seed: int, layout: KvLayout = LAYOUT) -> KvCache:
    """A cache whose every byte is random."""
    cache = KvCache(layout, blocks)
    fill_with_noise(cache, seed)
    return cache


def fill_with_noise(cache: KvCache, seed: int) -> None:
    """Overwrite every byte."""
    size = cache.num_blocks * cache.layout.bytes_per_block
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    cache.load(range(cache.layout.layers), range(cache.num_blocks), data.data)


def content(cache: KvCache, blocks: list[int]) -> list[bytes]:
    """The bytes of blocks, layer by layer."""
    return [bytes(cache.export(layer, blocks)) for layer in range(cache.layout.layers)]


def prompt_of(blocks: list[int], tokens: int | None = None) -> Sequence:
    """A prompt that fills `blocks`, or its first `tokens` tokens."""
    length = len(blocks) * LAYOUT.block_size if tokens is None else tokens
    positions = Positions(np.zeros((1, length), dtype=np.int64), length)
    return Sequence("test", [1] * length, positions, SamplingParams(temperature=0), block_table=blocks)


class Receiver:
    """A cache with reservations, and the ids of those that were delivered."""

    def __init__(
        self,
        blocks: int = 32,
        ttl_s: float = 30.0,
        transport: KvTransport = "auto",
        clock: Callable[[], float] = time.monotonic,
        layout: KvLayout = LAYOUT,
    ) -> None:
        self.cache = noisy_cache(blocks, seed=99, layout=layout)
        self.reservations = Reservations(layout.layers, ttl_s)
        self.prefix = PrefixCache(BlockPool(blocks))
        self.delivered: list[str] = []
        self.target = Target("me", self.cache, self.reservations, self._deliver, transport, clock)
        self.shelf = Shelf(self.cache, self.prefix, Transport(layout, transport, chunk_bytes=SHELF_CHUNK_BYTES))
        self._clock = clock

    def ticket(self, blocks: list[int], held: int = 0, address: str = "peer") -> kv_pb2.KvTicket:
        """Reserve `blocks`, which follow `held` that need not be sent."""
        reservation = self.reservations.open(blocks, held, self._clock())
        return kv_pb2.KvTicket(
            address=address,
            instance_id="me",
            reservation_id=reservation.id,
            layout=layout_to_proto(self.cache.layout),
            num_blocks=len(blocks),
            held_blocks=held,
        )

    def overwrite(self) -> None:
        """Fill the cache with noise again, as if nothing had been delivered."""
        fill_with_noise(self.cache, seed=99)
        self.delivered.clear()

    def _deliver(self, reservation_id: str, first: types_pb2.GeneratedToken) -> None:
        assert first == FIRST
        self.delivered.append(reservation_id)


def forget_cached(prefix: PrefixCache) -> None:
    """Evict all that nobody holds, as somebody who needs the whole pool does."""
    prefix.free(prefix.allocate(prefix.num_free))


def holder(cached: int) -> Receiver:
    """A worker that has the first `cached` of `HASHES` cached."""
    receiver = Receiver(16)
    blocks = receiver.prefix.allocate(cached)
    for block, block_hash in zip(blocks, HASHES, strict=False):
        receiver.prefix.publish(block, block_hash)
    receiver.prefix.free(blocks)
    return receiver


@asynccontextmanager
async def serving(receiver: Receiver) -> AsyncIterator[str]:
    """The receiver's KvService on real gRPC; yields its address."""
    server = RpcServer("127.0.0.1", 0)
    server.add(add_kv_service, KvServicer(receiver.shelf, receiver.target), NAME)
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.drain(0.0)
