"""The receiving process of `kv_transfer`: `python -m benchmarks.kv_receiver socket|kv SIZE_MIB`."""

from __future__ import annotations

import asyncio
import functools
import socket
import sys

import numpy as np

from common.engine.blocks import BlockPool
from common.engine.kv_cache import KvCache
from common.engine.layout import KvLayout
from common.engine.prefix_cache import PrefixCache
from common.kv.links import NAME
from common.kv.receiver import Target
from common.kv.reservations import Reservations
from common.kv.servicer import KvServicer, add_kv_service
from common.kv.wire import layout_to_proto
from common.rpc.server import RpcServer
from triptych.v1 import kv_pb2

MIB = 1 << 20
# As a model of 16 layers with 8 KV heads of 64 has it in bfloat16: 32 KiB a block and layer, 512 KiB a block.
LAYOUT = KvLayout("bfloat16", layers=16, kv_heads=8, head_dim=64, block_size=16)


def blocks_of(size_mib: int) -> int:
    """Blocks that make so many MiB over all layers."""
    return size_mib * MIB // LAYOUT.bytes_per_block


@functools.lru_cache(maxsize=1)
def cache_of(size_mib: int) -> KvCache:
    """A cache of that size, every page touched."""
    count = blocks_of(size_mib)
    cache = KvCache(LAYOUT, count)
    for layer in range(LAYOUT.layers):
        cache.load(layer, range(count), np.full(count * LAYOUT.bytes_per_layer_block, layer, dtype=np.uint8).data)
    return cache


def socket_receiver() -> None:
    """Accept a connection for each line on stdin, read SIZE_MIB from it, answer one byte."""
    size, buffer = int(sys.argv[2]) * MIB, bytearray(MIB)
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in sys.stdin:
            _say(str(server.getsockname()[1]))
            link, _ = server.accept()
            with link:
                left = size
                while left:
                    left -= link.recv_into(buffer)
                link.sendall(b".")


async def kv_receiver() -> None:
    """Serve KvService; print a ticket for the whole cache for each line on stdin."""
    cache, reservations = cache_of(int(sys.argv[2])), Reservations(LAYOUT.layers, ttl_s=60.0)
    target = Target("bench", cache, reservations, lambda reservation, first: None)
    server = RpcServer("127.0.0.1", 0)
    server.add(add_kv_service, KvServicer(target, PrefixCache(BlockPool(cache.num_blocks))), NAME)
    port = await server.start()
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        reservation = reservations.open(list(range(cache.num_blocks)), 0, asyncio.get_running_loop().time())
        ticket = kv_pb2.KvTicket(address=f"127.0.0.1:{port}", instance_id="bench", reservation_id=reservation.id)
        ticket.layout.CopyFrom(layout_to_proto(LAYOUT))
        ticket.num_blocks = cache.num_blocks
        _say(ticket.SerializeToString().hex())
    await server.drain(0.0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _say("up")
    socket_receiver() if sys.argv[1] == "socket" else asyncio.run(kv_receiver())
