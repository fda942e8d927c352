"""Cached blocks by hash over real gRPC, and the lease on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest

from common.kv.fetching import fetch_blocks, have, stream_blocks
from tests.kv_ends import LAYOUT, Receiver, content, noisy_cache, serving
from triptych.channel import open_channel
from triptych.errors import FailedPreconditionError

HASHES = [bytes([n]) * 32 for n in range(20)]


def holder() -> Receiver:
    """A worker that has the first 12 of `HASHES` cached."""
    receiver = Receiver(16)
    blocks = receiver.prefix.allocate(12)
    for block, block_hash in zip(blocks, HASHES, strict=False):
        receiver.prefix.publish(block, block_hash)
    receiver.prefix.free(blocks)
    return receiver


@asynccontextmanager
async def channel_to(receiver: Receiver) -> AsyncIterator[grpc.aio.Channel]:
    async with serving(receiver) as address, open_channel(address) as channel:
        yield channel


async def test_what_is_cached_is_fetched_exactly_and_let_go() -> None:
    receiver, mine = holder(), noisy_cache(32, seed=7)
    async with channel_to(receiver) as channel:
        assert await have(channel, HASHES) == 12
        assert await fetch_blocks(channel, HASHES, mine, list(range(20, 0, -1))) == 12
    assert content(mine, list(range(20, 8, -1))) == content(receiver.cache, receiver.prefix.match(HASHES))
    assert receiver.prefix.num_in_use == 0


async def test_another_layout_is_refused() -> None:
    other = noisy_cache(4, 1, type(LAYOUT)("float32", layers=3, kv_heads=2, head_dim=16, block_size=16))
    async with channel_to(holder()) as channel:
        with pytest.raises(FailedPreconditionError, match="layouts differ"):
            await fetch_blocks(channel, HASHES, other, [0, 1, 2, 3])


async def test_blocks_of_a_peer_that_takes_nothing_are_let_go() -> None:
    """F11: the lease of a read ends too."""
    receiver = holder()

    async def take_one_and_stall() -> None:
        async with aclosing(stream_blocks(HASHES, receiver.prefix, receiver.cache, lease_s=0.02)) as frames:
            async for _ in frames:
                await asyncio.Event().wait()

    stalled = asyncio.create_task(take_one_and_stall())
    await asyncio.wait([stalled], timeout=5)
    assert stalled.cancelled()
    assert receiver.prefix.num_in_use == 0
