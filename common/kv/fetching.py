"""Cached blocks by hash, from both ends: finding and streaming them, asking for and storing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import grpc

from common.engine.kv_cache import KvCache
from common.engine.prefix_cache import PrefixCache
from common.kv.frames import FetchFrame, Frame, decode_fetch
from common.kv.links import NAME, stream_errors
from common.kv.wire import Slab, checksum, cut, layout_to_proto, read_slab, slab_of, write_slab
from triptych.errors import InternalError, InvalidArgumentError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import kv_pb2, kv_pb2_grpc

HAVE_S = 1.0
FETCH_S = 30.0
"""A prompt waits while peers are asked; a peer that hangs must not cost it more."""
LEASE_S = 30.0
"""Blocks of a fetch whose peer does not take the next chunk for as long are let go."""


async def stream_blocks(
    hashes: Sequence[bytes], prefix: PrefixCache, cache: KvCache, lease_s: float = LEASE_S
) -> AsyncGenerator[FetchFrame, None]:
    """The serving end. The blocks are held until the stream ends, however it ends.

    The task that runs it is cancelled when a frame is not taken within the lease, `lease_s` seconds.
    """
    expire = _cancel_current_task()
    blocks = prefix.match(hashes)
    prefix.share(blocks)
    loop = asyncio.get_running_loop()
    lease = loop.call_later(lease_s, expire)
    try:
        yield Frame(kv_pb2.FetchResponse(found=kv_pb2.HaveResponse(num_blocks=len(blocks))))
        for slab in cut(Slab(0, cache.layout.layers, 0, len(blocks)), cache.layout):
            lease.cancel()
            lease = loop.call_later(lease_s, expire)
            yield _frame(slab, cache, blocks[slab.first_block : slab.end_block])
    finally:
        lease.cancel()
        prefix.free(blocks)


async def have(channel: grpc.aio.Channel, hashes: Sequence[bytes]) -> int:
    """How many leading blocks a peer has cached. Raises what the peer raises, or UnavailableError."""
    with rpc_errors():
        answer = await kv_pb2_grpc.KvServiceStub(channel).Have(kv_pb2.HaveRequest(block_hashes=hashes), timeout=HAVE_S)
    return answer.num_blocks


async def fetch_blocks(
    channel: grpc.aio.Channel, hashes: Sequence[bytes], cache: KvCache, blocks: Sequence[int]
) -> int:
    """The asking end: fill pool blocks `blocks` with what `hashes` name; returns how many leading ones are complete.

    Raises what the peer raises, or UnavailableError; the blocks then hold nothing of use.
    """
    method = channel.unary_stream(
        f"/{NAME}/Fetch", request_serializer=kv_pb2.FetchRequest.SerializeToString, response_deserializer=decode_fetch
    )
    call = method(kv_pb2.FetchRequest(block_hashes=hashes, layout=layout_to_proto(cache.layout)), timeout=FETCH_S)
    found = missing = 0
    try:
        with stream_errors("a peer's KV"):
            async for frame in call:
                if frame.kind == "found":
                    found = min(frame.message.found.num_blocks, len(blocks))
                    missing = found * cache.layout.layers
                else:
                    missing -= _store(frame, cache, blocks[:found])
    finally:
        call.cancel()
    if missing:
        raise UnavailableError("a peer's KV stream ended early")
    return found


def _cancel_current_task() -> Callable[[], object]:
    task = asyncio.current_task()
    if task is None:
        raise InternalError("KV blocks are streamed outside a task")
    return task.cancel


def _frame(slab: Slab, cache: KvCache, blocks: Sequence[int]) -> FetchFrame:
    data = memoryview(bytearray(slab.size_bytes(cache.layout)))
    read_slab(slab, cache, blocks, data)
    chunk = kv_pb2.KvChunk(
        first_block=slab.first_block,
        num_blocks=slab.num_blocks,
        first_layer=slab.first_layer,
        num_layers=slab.num_layers,
        crc32=checksum(data),
    )
    return Frame(kv_pb2.FetchResponse(chunk=chunk), (data,))


def _store(frame: FetchFrame, cache: KvCache, blocks: Sequence[int]) -> int:
    slab = slab_of(frame.message.chunk)
    if slab.end_block > len(blocks) or slab.first_layer + slab.num_layers > cache.layout.layers:
        raise InvalidArgumentError(f"a peer sent {slab}, which was not asked for", param="chunk")
    data = memoryview(b"".join(frame.payload)) if len(frame.payload) != 1 else memoryview(frame.payload[0])
    expected = slab.size_bytes(cache.layout)
    if len(data) != expected or checksum(data) != frame.message.chunk.crc32:
        raise UnavailableError(f"a fetched KV chunk is damaged: {len(data)} of {expected} bytes")
    write_slab(slab, data, cache, blocks[slab.first_block : slab.end_block])
    return slab.num_blocks * slab.num_layers
