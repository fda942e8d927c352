"""Pulls over the in-memory twin: the push protocol the other way round, and the lease on the holder's blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from common.kv.fetching import KvPull
from common.kv.filling import CREDITS
from common.kv.serving import serve_pull
from common.kv.staging import KvTransport
from common.kv.wire import layout_to_proto
from tests.kv_ends import HASHES, LAYOUT, content, forget_cached, holder, noisy_cache
from tests.kv_links import Fault, FaultName, FaultyLinks, MemoryLinks
from triptych.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    TriptychError,
    UnavailableError,
)
from triptych.v1 import kv_pb2

TO = [31, 4, 17, 5, 6, 7, 30, 29, 1, 2, 3, 20, 11, 12]
CHUNKS = 16


class Ends:
    """A worker that asks, one that has 12 blocks, and faults in between."""

    def __init__(self, mode: KvTransport, *faults: Fault, answer_s: float = 5.0) -> None:
        self.holder = holder(12)
        self.mine = noisy_cache(32, seed=7)
        self.links = FaultyLinks(MemoryLinks(shelf=replace(self.holder.shelf, answer_s=answer_s)), *faults)
        self._pull = KvPull(self.links, self.mine, HASHES, TO, mode, answer_s)

    async def pull(self) -> int:
        return await self._pull.fetch("peer")

    def arrived(self) -> bool:
        """All is here, and nobody holds the peer's blocks any more."""
        there = content(self.holder.cache, self.holder.prefix.match(HASHES))
        return content(self.mine, TO[:12]) == there and self.let_go()

    def let_go(self) -> bool:
        self.holder.prefix.validate()
        staging = self.holder.shelf.transport.staging
        slots_back = staging is None or staging.num_free == staging.num_slots
        return slots_back and self.holder.prefix.num_in_use == 0


async def settled() -> None:
    """Closed streams get a moment to end."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_what_is_cached_arrives_exactly(mode: KvTransport) -> None:
    ends = Ends(mode)
    assert await ends.pull() == 12
    await settled()
    assert ends.arrived()
    assert ends.links.chunks == CHUNKS


@pytest.mark.parametrize("mode", ["grpc", "shm"])
@pytest.mark.parametrize("nth", [1, 9, CHUNKS])
@pytest.mark.parametrize("name", ["drop", "duplicate", "corrupt", "fail", "delay"])
async def test_a_fault_of_one_chunk_costs_that_chunk_only(mode: KvTransport, name: FaultName, nth: int) -> None:
    fault = Fault(name, nth)
    ends = Ends(mode, fault)
    assert await ends.pull() == 12
    await settled()
    assert ends.arrived() and fault.hits == 1
    assert ends.links.streams == (2 if name == "fail" else 1)
    assert ends.links.chunks <= CHUNKS + 1, "more was sent again than was missing"


@pytest.mark.parametrize(("name", "error"), [("corrupt", FailedPreconditionError), ("fail", UnavailableError)])
async def test_a_fault_that_stays_fails_the_pull(name: FaultName, error: type[TriptychError]) -> None:
    ends = Ends("grpc", Fault(name, times=10_000))
    with pytest.raises(error):
        await ends.pull()
    await settled()
    assert ends.let_go()


async def test_a_silent_peer_is_given_up_and_gives_up_itself() -> None:
    """F15: what never comes is no reason to wait for ever."""
    ends = Ends("shm", Fault("drop", times=10_000), answer_s=0.02)
    with pytest.raises(UnavailableError):
        await ends.pull()
    await settled()
    assert ends.let_go()


async def test_no_more_chunks_are_under_way_than_the_asker_grants() -> None:
    fault = Fault("drop", times=10_000)
    ends = Ends("grpc", fault)
    pulling = asyncio.create_task(ends.pull())
    for _ in range(300):
        await asyncio.sleep(0)
    assert ends.links.chunks == CREDITS
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await settled()
    assert ends.let_go()


async def test_a_pull_that_is_cancelled_lets_the_blocks_go() -> None:
    pause = Fault("pause", nth=3)
    ends = Ends("shm", pause)
    pulling = asyncio.create_task(ends.pull())
    await pause.reached.wait()
    assert ends.holder.prefix.num_in_use == 12
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await settled()
    assert ends.let_go()


async def test_blocks_that_vanish_between_two_streams_end_the_pull() -> None:
    pause = Fault("pause", nth=3)
    ends = Ends("grpc", pause, Fault("fail", nth=4))
    pulling = asyncio.create_task(ends.pull())
    await pause.reached.wait()
    ends.links.faults.pop(0)
    pause.resume.set()
    while ends.holder.prefix.num_in_use:  # noqa: ASYNC110 nothing tells us
        await asyncio.sleep(0)
    forget_cached(ends.holder.prefix)
    with pytest.raises(FailedPreconditionError, match="evicted"):
        await pulling


async def test_blocks_that_cannot_be_held_end_the_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not wait for a frame that nobody is going to send."""
    ends = Ends("grpc")

    def broken(blocks: object) -> None:
        raise InternalError("a block is not what it was")

    with monkeypatch.context() as patch:
        patch.setattr(ends.holder.prefix, "share", broken)
        with pytest.raises(InternalError):
            await ends.pull()
    assert ends.let_go()


async def test_a_peer_without_the_blocks_gives_none() -> None:
    ends = Ends("auto")
    forget_cached(ends.holder.prefix)
    assert await ends.pull() == 0


@pytest.mark.parametrize("index", [0, 1])
async def test_a_stream_that_is_no_pull_is_refused(index: int) -> None:
    begin = kv_pb2.PullRequest(begin=kv_pb2.PullBegin(layout=layout_to_proto(LAYOUT)))
    messages = [begin, kv_pb2.PullRequest(opened=kv_pb2.PushOpened(credits=1))]
    messages[index] = kv_pb2.PullRequest() if index == 0 else begin

    async def requests() -> AsyncGenerator[kv_pb2.PullRequest, None]:
        for message in messages:
            yield message

    with pytest.raises(InvalidArgumentError):
        async with aclosing(serve_pull(requests(), holder(2).shelf)) as frames:
            _ = [frame async for frame in frames]
