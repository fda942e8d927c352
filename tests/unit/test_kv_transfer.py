"""The transfer protocol over the in-memory twin: whatever happens to chunks, KV arrives once and exactly."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.kv.filling import CREDITS
from common.kv.sender import KvPush
from common.kv.staging import KvTransport, Staging
from common.kv.transport import Transport
from tests.kv_ends import FIRST, LAYOUT, Receiver, content, prompt_of
from tests.kv_links import Fault, FaultName, FaultyLinks, MemoryLinks
from tests.kv_pushing import CHUNK_BYTES, FROM, SOURCE, TO, Ends
from triptych.errors import FailedPreconditionError, RequestCancelledError, TriptychError, UnavailableError


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_kv_arrives_exactly_and_is_delivered_once(mode: KvTransport) -> None:
    ends = Ends(mode)
    push = await ends.deliver()
    assert ends.arrived()
    assert push.sent_bytes == len(FROM) * LAYOUT.bytes_per_block
    assert ends.links.chunks == 16, "small chunks are what makes the faults of the other tests interesting"


@pytest.mark.parametrize("mode", ["grpc", "shm"])
@pytest.mark.parametrize("nth", [1, 2, 9, 16])
@pytest.mark.parametrize("name", ["drop", "duplicate", "corrupt", "fail", "delay"])
async def test_a_fault_of_one_chunk_costs_that_chunk_only(mode: KvTransport, name: FaultName, nth: int) -> None:
    ends = Ends(mode, Fault(name, nth))
    await ends.deliver()
    assert ends.arrived()
    assert ends.links.streams == (2 if name == "fail" else 1)
    assert ends.links.chunks <= 16 + (CREDITS if name == "fail" else 1), "more was sent again than was missing"


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_an_acknowledgement_that_is_lost_is_repeated_without_a_second_delivery(mode: KvTransport) -> None:
    ends = Ends(mode, Fault("lose_ack", times=3))
    await ends.deliver()
    assert ends.arrived()
    assert (ends.links.streams, ends.links.chunks) == (4, 16)


async def test_only_what_is_missing_is_sent_after_a_break() -> None:
    ends = Ends("grpc", Fault("fail", nth=14))
    push = await ends.deliver()
    total = len(FROM) * LAYOUT.bytes_per_block
    assert total < push.sent_bytes <= total + (CREDITS + 1) * CHUNK_BYTES, "at most the chunks under way are sent twice"


@pytest.mark.parametrize(("name", "error"), [("corrupt", FailedPreconditionError), ("fail", UnavailableError)])
async def test_a_fault_that_stays_fails_the_transfer(name: FaultName, error: type[TriptychError]) -> None:
    ends = Ends("grpc", Fault(name, times=10_000))
    with pytest.raises(error):
        await ends.deliver()
    assert ends.receiver.delivered == []


async def test_a_receiver_that_stays_silent_is_taken_for_gone() -> None:
    ends = Ends("shm", Fault("drop", times=10_000), answer_s=0.02)
    with pytest.raises(UnavailableError, match="no answer"):
        await ends.deliver()
    assert ends.transport.staging and ends.transport.staging.num_free == ends.transport.staging.num_slots


async def test_no_more_chunks_are_under_way_than_the_receiver_grants() -> None:
    ends = Ends("grpc", Fault("drop", times=10_000))
    push = ends.push()
    push.ready(len(FROM) * LAYOUT.block_size)
    for _ in range(100):
        await asyncio.sleep(0)
    assert ends.links.chunks == CREDITS
    push.abort()


async def test_layers_travel_while_later_ones_are_computed() -> None:
    ends = Ends("grpc")
    push = ends.push()
    for layer in range(LAYOUT.layers):
        push.layer_ready(layer, len(FROM) * LAYOUT.block_size)
        await ends.links.sent(4 * (layer + 1))
    await push.finish(FIRST)
    assert ends.arrived()


async def staging_of(ends: Ends, free: int) -> Staging:
    """The sender's slots, all but `free` of them taken by others."""
    ends.transport.offer()
    staging = ends.transport.staging
    assert staging is not None
    for _ in range(staging.num_slots - free):
        await staging.take()
    return staging


async def test_four_transfers_through_one_slot_all_finish() -> None:
    """F27."""
    ends = Ends("shm")
    staging = await staging_of(ends, free=1)
    tickets = [ends.receiver.ticket(TO[3 * n : 3 * n + 3]) for n in range(4)]
    pushes = [ends.push(ticket, FROM[:3]) for ticket in tickets]
    for push in pushes:
        push.ready(3 * LAYOUT.block_size)
    async with asyncio.timeout(5):
        await asyncio.gather(*(push.finish(FIRST) for push in pushes))
    assert len(ends.receiver.delivered) == 4
    assert staging.num_free == 1


async def test_slots_that_never_come_back_hold_up_nobody_else() -> None:
    """A receiver that hangs has them all: the bytes go in the stream."""
    ends = Ends("shm")
    await staging_of(ends, free=0)
    push = ends.push(ends.receiver.ticket([3]), [0])
    push.ready(LAYOUT.block_size)
    await push.finish(FIRST)
    assert content(ends.receiver.cache, [3]) == content(SOURCE, [0])


async def test_aborted_transfer_reads_no_block_any_more() -> None:
    fault = Fault("pause", nth=3)
    ends = Ends("grpc", fault)
    push = ends.push()
    push.ready(len(FROM) * LAYOUT.block_size)
    await fault.reached.wait()
    push.abort()
    fault.resume.set()
    with pytest.raises((asyncio.CancelledError, RequestCancelledError)):
        await push.acknowledged()
    assert ends.links.chunks == 3


async def test_another_layout_is_refused_before_anything_moves() -> None:
    """F02: a transfer that was forced past the pairing ends at once, with the reason."""
    receiver = Receiver(layout=replace(LAYOUT, kv_heads=1))
    links = FaultyLinks(MemoryLinks(receiver.target))
    push = KvPush(SOURCE, receiver.ticket(TO), prompt_of(FROM), links, Transport(LAYOUT))
    push.ready(len(FROM) * LAYOUT.block_size)
    with pytest.raises(FailedPreconditionError, match="layouts differ"):
        await push.finish(FIRST)
    assert links.chunks == 0


async def test_shared_memory_that_must_be_and_cannot_is_an_error() -> None:
    receiver = Receiver(transport="grpc")
    links, transport = MemoryLinks(receiver.target), Transport(LAYOUT, "shm")
    push = KvPush(SOURCE, receiver.ticket(TO), prompt_of(FROM), links, transport)
    with pytest.raises(FailedPreconditionError, match="kv_transport"):
        await push.acknowledged()


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_two_hundred_transfers_that_begin_at_once_all_complete(mode: KvTransport) -> None:
    """F12."""
    ends = Ends(mode)
    for _ in range(25):
        tickets = [ends.receiver.ticket([block]) for block in range(8)]
        pushes = [ends.push(ticket, [20 + n]) for n, ticket in enumerate(tickets)]
        for push in pushes:
            push.ready(LAYOUT.block_size)
        await asyncio.gather(*(push.finish(FIRST) for push in pushes))
        assert content(ends.receiver.cache, list(range(8))) == content(SOURCE, list(range(20, 28)))
    assert len(ends.receiver.delivered) == 200
