"""Cached blocks by hash over real gRPC: pulled with answers, read without, and the lease on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from common.kv.fetching import KvPull, have
from common.kv.links import GrpcLinks
from common.kv.reading import serve_fetch
from common.kv.staging import KvTransport
from common.kv.transport import Transport
from common.kv.wire import layout_to_proto
from common.rpc.channels import Channels
from tests.kv_ends import HASHES, LAYOUT, Receiver, content, holder, noisy_cache, serving
from triptych.channel import open_channel
from triptych.errors import FailedPreconditionError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import kv_pb2, kv_pb2_grpc

TO = list(range(20, 0, -1))


@asynccontextmanager
async def links() -> AsyncIterator[GrpcLinks]:
    channels = Channels()
    yield GrpcLinks(channels)
    await channels.close()


async def let_go(receiver: Receiver) -> None:
    """Return once nobody holds the receiver's blocks."""
    freed = asyncio.Event()
    receiver.prefix.on_free(freed.set)
    async with asyncio.timeout(10):
        while receiver.prefix.num_in_use:
            freed.clear()
            await freed.wait()


@pytest.mark.parametrize("mode", ["grpc", "auto"])
async def test_what_is_cached_is_pulled_exactly_and_let_go(mode: KvTransport) -> None:
    receiver, mine = holder(12), noisy_cache(32, seed=7)
    async with serving(receiver) as address, links() as streams:
        assert await KvPull(streams, mine, HASHES, TO, mode).fetch(address) == 12
        await let_go(receiver)
    assert content(mine, TO[:12]) == content(receiver.cache, receiver.prefix.match(HASHES))


async def test_a_worker_says_how_many_leading_blocks_it_has() -> None:
    async with serving(holder(12)) as address, open_channel(address) as channel:
        assert await have(channel, HASHES) == 12
        assert await have(channel, HASHES[1:]) == 11
        assert await have(channel, [b"?" * 32]) == 0


async def test_another_layout_is_refused() -> None:
    other = noisy_cache(4, 1, type(LAYOUT)("float32", layers=3, kv_heads=2, head_dim=16, block_size=16))
    async with serving(holder(12)) as address, links() as streams:
        with pytest.raises(FailedPreconditionError, match="layouts differ"):
            await KvPull(streams, other, HASHES, [0, 1, 2, 3]).fetch(address)


async def test_nobody_at_the_address_is_unavailable() -> None:
    async with serving(holder(12)) as address, links() as streams:
        pass
    async with links() as streams:
        with pytest.raises(UnavailableError):
            await KvPull(streams, noisy_cache(32, seed=7), HASHES, TO).fetch(address)


async def test_a_reader_without_answers_gets_the_same_blocks() -> None:
    receiver = holder(12)
    async with serving(receiver) as address, open_channel(address) as channel:
        request = kv_pb2.FetchRequest(block_hashes=HASHES, layout=layout_to_proto(LAYOUT))
        found, *chunks = [message async for message in kv_pb2_grpc.KvServiceStub(channel).Fetch(request)]
        await let_go(receiver)
    assert (found.found.num_blocks, receiver.shelf.transport.staging) == (12, None)
    data = b"".join(message.chunk.data for message in chunks)
    assert data == b"".join(content(receiver.cache, receiver.prefix.match(HASHES)))


@pytest.mark.parametrize("taken", [1, 2], ids=["header", "chunk"])
async def test_blocks_of_a_reader_that_stops_taking_are_let_go(taken: int) -> None:
    """F11: the lease of a read ends too."""
    receiver = holder(12)
    request = kv_pb2.FetchRequest(block_hashes=HASHES, layout=layout_to_proto(LAYOUT))
    async with aclosing(serve_fetch(request, replace(receiver.shelf, answer_s=0.02))) as frames:
        for _ in range(taken):
            await anext(frames)
        await let_go(receiver)
        with pytest.raises(UnavailableError):
            await anext(frames)


async def test_a_reader_without_answers_is_refused_where_all_kv_goes_through_shared_memory() -> None:
    shelf = replace(holder(12).shelf, transport=Transport(LAYOUT, "shm"))
    with pytest.raises(FailedPreconditionError, match="kv_transport is shm"):
        _ = [frame async for frame in serve_fetch(kv_pb2.FetchRequest(), shelf)]


async def test_a_reader_without_answers_of_another_layout_is_refused() -> None:
    async with serving(holder(12)) as address, open_channel(address) as channel:
        with pytest.raises(FailedPreconditionError, match="layouts differ"), rpc_errors():
            _ = [message async for message in kv_pb2_grpc.KvServiceStub(channel).Fetch(kv_pb2.FetchRequest())]
