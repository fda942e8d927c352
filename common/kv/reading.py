"""Cached blocks by hash as one plain stream, for readers that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from common.kv.frames import FetchFrame, Frame
from common.kv.payload import SlabData, checksum_of
from common.kv.serving import Shelf
from common.kv.wire import Slab, chunk_of, cut
from triptych.errors import InternalError
from triptych.v1 import kv_pb2

LEASE_S = 30.0
"""Blocks of a stream whose reader does not take the next chunk for as long are let go."""


async def stream_blocks(
    hashes: Sequence[bytes], shelf: Shelf, lease_s: float = LEASE_S
) -> AsyncGenerator[FetchFrame, None]:
    """The blocks are held until the stream ends, however it ends.

    The task that runs it is cancelled when a frame is not taken within the lease, `lease_s` seconds.
    """
    expire = _cancel_current_task()
    loop, cache = asyncio.get_running_loop(), shelf.cache
    lease = loop.call_later(lease_s, expire)
    try:
        with shelf.holding(hashes) as blocks:
            yield Frame(kv_pb2.FetchResponse(found=kv_pb2.HaveResponse(num_blocks=len(blocks))))
            for slab in cut(Slab(0, cache.layout.layers, 0, len(blocks)), cache.layout):
                lease.cancel()
                lease = loop.call_later(lease_s, expire)
                yield _frame(SlabData(slab, cache, blocks[slab.first_block : slab.end_block]))
    finally:
        lease.cancel()


def _frame(data: SlabData) -> FetchFrame:
    views, chunk = data.views(), chunk_of(data.slab, seq=0)
    chunk.xxh3 = checksum_of(views)
    return Frame(kv_pb2.FetchResponse(chunk=chunk), views)


def _cancel_current_task() -> Callable[[], object]:
    task = asyncio.current_task()
    if task is None:
        raise InternalError("KV blocks are streamed outside a task")
    return task.cancel
