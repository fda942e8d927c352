"""Cached blocks by hash, from both ends: finding and streaming them, asking for and storing them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc

from common.engine.kv_cache import KvCache
from common.engine.prefix_cache import PrefixCache
from common.kv.wire import Slab, cut, layout_to_proto, slab_of, to_chunk, write_chunk
from triptych.errors import InvalidArgumentError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import kv_pb2, kv_pb2_grpc


async def stream_blocks(
    hashes: Sequence[bytes], prefix: PrefixCache, cache: KvCache
) -> AsyncIterator[kv_pb2.FetchResponse]:
    """The serving end. The blocks are held until the stream ends, however it ends."""
    blocks = prefix.match(hashes)
    prefix.share(blocks)
    try:
        yield kv_pb2.FetchResponse(found=kv_pb2.HaveResponse(num_blocks=len(blocks)))
        for slab in cut(Slab(0, cache.layout.layers, 0, len(blocks)), cache.layout):
            yield kv_pb2.FetchResponse(chunk=to_chunk(slab, cache, blocks[slab.first_block : slab.end_block]))
    finally:
        prefix.free(blocks)


async def have(channel: grpc.aio.Channel, hashes: Sequence[bytes]) -> int:
    """How many leading blocks a peer has cached. Raises what the peer raises, or UnavailableError."""
    with rpc_errors():
        answer = await kv_pb2_grpc.KvServiceStub(channel).Have(kv_pb2.HaveRequest(block_hashes=hashes))
    return answer.num_blocks


async def fetch_blocks(
    channel: grpc.aio.Channel, hashes: Sequence[bytes], cache: KvCache, blocks: Sequence[int]
) -> int:
    """The asking end: fill pool blocks `blocks` with what `hashes` name; returns how many leading ones are complete.

    Raises what the peer raises, or UnavailableError; the blocks then hold nothing of use.
    """
    request = kv_pb2.FetchRequest(block_hashes=hashes, layout=layout_to_proto(cache.layout))
    call = kv_pb2_grpc.KvServiceStub(channel).Fetch(request)
    found = missing = 0
    try:
        with rpc_errors():
            async for message in call:
                if message.WhichOneof("message") == "found":
                    found = min(message.found.num_blocks, len(blocks))
                    missing = found * cache.layout.layers
                else:
                    missing -= _store(message.chunk, cache, blocks[:found])
    finally:
        call.cancel()
    if missing:
        raise UnavailableError("a peer's KV stream ended early")
    return found


def _store(chunk: kv_pb2.KvChunk, cache: KvCache, blocks: Sequence[int]) -> int:
    slab = slab_of(chunk)
    if slab.end_block > len(blocks) or slab.first_layer + slab.num_layers > cache.layout.layers:
        raise InvalidArgumentError(f"a peer sent {slab}, which was not asked for", param="chunk")
    write_chunk(chunk, cache, blocks[slab.first_block : slab.end_block])
    return slab.num_blocks * slab.num_layers
