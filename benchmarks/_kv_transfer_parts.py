"""What a KV transfer is made of, each part by itself: a bare gRPC stream, and the copies at both ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc

from benchmarks._kv_child import Child
from benchmarks._kv_receiver import LAYOUT, MIB, SINK, cache_of
from common.kv.payload import SlabData, checksum
from common.kv.staging import Staging
from common.kv.wire import CHUNK_BYTES, Slab, cut
from common.rpc.channels import Channels

ROUNDS = 5

OPENING_S = 0.05
"""Long enough to open a stream, as the computation of a first layer is."""


async def over_bare_stream(child: Child, channels: Channels, size_mib: int) -> float:
    """Seconds to move the bytes through a gRPC stream that does nothing with them, and hear that they are there."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channels.get(child.ticket().address).stream_stream(SINK)()
    chunk = bytes(min(CHUNK_BYTES, size_mib * MIB))
    await asyncio.sleep(OPENING_S)
    begin = time.perf_counter()
    for _ in range(size_mib * MIB // len(chunk)):
        await call.write(chunk)
    await call.done_writing()
    await call.read()
    return time.perf_counter() - begin


def copies(size_mib: int = 128) -> dict[str, float]:
    """GB/s of the sender's and of the receiver's copy with its checksum, and of the checksum by itself."""
    cache, staging = cache_of(size_mib), Staging(CHUNK_BYTES, 1)
    blocks = list(range(cache.num_blocks))
    slabs = list(cut(Slab(0, LAYOUT.layers, 0, cache.num_blocks), LAYOUT, CHUNK_BYTES))

    def each(act: Callable[[SlabData, memoryview], int]) -> Callable[[], None]:
        def run() -> None:
            for slab in slabs:
                data = SlabData(slab, cache, blocks[slab.first_block : slab.end_block])
                act(data, staging.view(0, data.size))

        return run

    parts = {"send": SlabData.copy_to, "receive": SlabData.copy_from, "checksum": lambda _, view: checksum(view)}
    return {name: size_mib * MIB / _best(each(act)) / 1e9 for name, act in parts.items()}


def _best(run: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)
