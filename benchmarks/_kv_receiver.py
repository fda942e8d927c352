"""The receiving process of the KV benchmarks: `python -m benchmarks._kv_receiver socket|kv SIZE_MIB [LAYOUT]`.

LAYOUT is a `KvLayout` in JSON.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import sys
import time
from collections.abc import AsyncIterator

import grpc
import numpy as np
import torch
from numpy.typing import NDArray

from common.engine.blocks import BlockPool
from common.engine.kv_cache import KvCache
from common.engine.layout import KvLayout
from common.engine.prefix_cache import PrefixCache
from common.kv.links import NAME
from common.kv.receiver import Target
from common.kv.reservations import Reservations
from common.kv.servicer import KvServicer, add_kv_service
from common.kv.serving import Shelf
from common.kv.transport import Transport
from common.rpc.server import RpcServer
from common.worker.heap import keep_freed_memory
from triptych.v1 import kv_pb2

MIB = 1 << 20
SINK = "/triptych.bench.Sink/Take"
# As a model of 16 layers with 8 KV heads of 64 has it in bfloat16: 32 KiB a block and layer, 512 KiB a block.
LAYOUT = KvLayout("bfloat16", layers=16, kv_heads=8, head_dim=64, block_size=16)


@functools.lru_cache(maxsize=1)
def cache_of(size_mib: int, layout: KvLayout = LAYOUT) -> KvCache:
    """A cache of that size, every page touched."""
    count = size_mib * MIB // layout.bytes_per_block
    cache = KvCache(layout, count)
    for layer in range(layout.layers):
        data = np.full(count * layout.bytes_per_layer_block, layer, dtype=np.uint8)
        cache.load(range(layer, layer + 1), range(count), data.data)
    return cache


def touched(size_mib: int) -> NDArray[np.uint8]:
    """So many bytes, every page touched, allocated as a cache is."""
    return torch.ones(size_mib * MIB, dtype=torch.uint8).numpy()


def socket_receiver() -> None:
    """Say a port, accept one connection, and answer a byte whenever SIZE_MIB have come, to memory as large as that."""
    target = touched(int(sys.argv[2])).data
    with socket.create_server(("127.0.0.1", 0)) as server:
        sys.stdin.readline()
        _say(str(server.getsockname()[1]))
        with server.accept()[0] as link:
            at = 0
            while count := link.recv_into(target[at:]):
                at = (at + count) % len(target)
                if not at:
                    link.sendall(b".")


async def kv_receiver() -> None:
    """Serve KvService; for each line on stdin print a ticket for as many blocks as it says, or for all."""
    cache = cache_of(int(sys.argv[2]), KvLayout(**json.loads(sys.argv[3])) if sys.argv[3:] else LAYOUT)
    reservations = Reservations(cache.layout.layers, ttl_s=60.0)
    target = Target("bench", cache, reservations, lambda reservation_id, first: None)
    shelf = Shelf(cache, PrefixCache(BlockPool(cache.num_blocks)), Transport(cache.layout))
    server = RpcServer("127.0.0.1", 0)
    server.add(add_kv_service, KvServicer(shelf, target), NAME)
    server.add(_add_sink, None, SINK.split("/")[1])
    address = f"127.0.0.1:{await server.start()}"
    while line := await asyncio.to_thread(sys.stdin.readline):
        blocks = list(range(int(line.strip() or cache.num_blocks)))
        _say(_ticket(address, reservations, blocks).SerializeToString().hex())
    await server.drain(0.0)


def _add_sink(servicer: None, server: grpc.aio.Server) -> None:
    """A stream that takes bytes and does nothing with them, for comparison."""

    async def take(chunks: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for _ in chunks:
            pass
        yield b"."

    service, method = SINK.split("/")[1:]
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {method: grpc.stream_stream_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _ticket(address: str, reservations: Reservations, blocks: list[int]) -> kv_pb2.KvTicket:
    reservation = reservations.open(blocks, 0, time.monotonic())
    return kv_pb2.KvTicket(address=address, instance_id="bench", reservation_id=reservation.id, num_blocks=len(blocks))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    keep_freed_memory()
    _say("up")
    socket_receiver() if sys.argv[1] == "socket" else asyncio.run(kv_receiver())
