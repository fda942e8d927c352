"""The transfer protocol over the in-memory twin: whatever happens to chunks, KV arrives once and exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from common.kv.filling import CREDITS
from common.kv.frames import Frame, PushFrame
from common.kv.payload import checksum
from common.kv.receiver import PushReceiver
from common.kv.sender import KvPush
from common.kv.staging import KvTransport
from common.kv.transport import Transport
from tests.kv_ends import FIRST, LAYOUT, Receiver, content, noisy_cache, prompt_of
from tests.kv_links import Fault, FaultName, FaultyLinks, MemoryLinks
from triptych.errors import FailedPreconditionError, RequestCancelledError, TriptychError, UnavailableError
from triptych.v1 import kv_pb2

SOURCE = noisy_cache(32, seed=1)
FROM, TO = list(range(12)), [31, 4, 17, 5, 6, 7, 30, 29, 1, 2, 3, 20]
CHUNK_BYTES = 3 * LAYOUT.bytes_per_layer_block


class Ends:
    """One sender, one receiver, faults in between."""

    def __init__(self, mode: KvTransport, *faults: Fault, answer_s: float = 5.0) -> None:
        self.receiver = Receiver()
        self.links = FaultyLinks(MemoryLinks(self.receiver.target), *faults)
        self.transport = Transport(LAYOUT, mode, CHUNK_BYTES)
        self.answer_s = answer_s
        self.ticket = self.receiver.ticket(TO)

    def push(self, ticket: kv_pb2.KvTicket | None = None, blocks: list[int] = FROM) -> KvPush:
        return KvPush(SOURCE, ticket or self.ticket, prompt_of(blocks), self.links, self.transport, self.answer_s)

    async def deliver(self) -> KvPush:
        push = self.push()
        push.ready(len(FROM) * LAYOUT.block_size)
        await push.finish(FIRST)
        return push

    def arrived(self) -> bool:
        return content(self.receiver.cache, TO) == content(SOURCE, FROM) and len(self.receiver.delivered) == 1


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


async def test_another_transfer_of_a_delivered_reservation_is_refused() -> None:
    ends = Ends("grpc")
    await ends.deliver()
    with pytest.raises(FailedPreconditionError, match="not valid"):
        await ends.deliver()
    assert ends.arrived()


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


async def test_four_transfers_through_one_slot_all_finish() -> None:
    """F27."""
    ends = Ends("shm")
    ends.transport.offer()
    staging = ends.transport.staging
    assert staging is not None
    for _ in range(staging.num_slots - 1):
        await staging.take()
    tickets = [ends.receiver.ticket(TO[3 * n : 3 * n + 3]) for n in range(4)]
    pushes = [ends.push(ticket, FROM[:3]) for ticket in tickets]
    for push in pushes:
        push.ready(3 * LAYOUT.block_size)
    async with asyncio.timeout(5):
        await asyncio.gather(*(push.finish(FIRST) for push in pushes))
    assert len(ends.receiver.delivered) == 4
    assert staging.num_free == 1


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


async def test_a_newer_transfer_takes_a_reservation_over() -> None:
    fault = Fault("pause", nth=3)
    ends = Ends("grpc", fault)
    old = ends.push()
    old.ready(len(FROM) * LAYOUT.block_size)
    await fault.reached.wait()
    await ends.deliver()
    fault.resume.set()
    with pytest.raises(FailedPreconditionError):
        await old.acknowledged()
    assert ends.arrived()


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


def whole_transfer(ticket: kv_pb2.KvTicket) -> list[PushFrame]:
    data = bytes(LAYOUT.bytes_per_block)
    header = kv_pb2.PushHeader(
        reservation_id=ticket.reservation_id, instance_id=ticket.instance_id, layout=ticket.layout
    )
    chunk = kv_pb2.KvChunk(num_blocks=1, num_layers=LAYOUT.layers, xxh3=checksum(data))
    return [
        Frame(kv_pb2.PushRequest(header=header)),
        Frame(kv_pb2.PushRequest(chunk=chunk), (data,)),
        Frame(kv_pb2.PushRequest(first_token=kv_pb2.FirstToken(token=FIRST))),
    ]


@pytest.mark.parametrize("expired_at", [0, 1, 2], ids=["header", "chunk", "first token"])
async def test_every_message_of_an_expired_lease_is_refused(expired_at: int) -> None:
    """F11, and retryable: a new lease may be had."""
    now = [0.0]
    receiver = Receiver(ttl_s=5.0, clock=lambda: now[0])

    async def frames() -> AsyncIterator[PushFrame]:
        for index, frame in enumerate(whole_transfer(receiver.ticket([3]))):
            now[0] = 5.0 if index == expired_at else 0.0
            yield frame

    with pytest.raises(UnavailableError, match="expired"):
        _ = [answer async for answer in PushReceiver(receiver.target).run(frames())]
    untouched = content(receiver.cache, [3]) == content(Receiver().cache, [3])
    assert (untouched, receiver.delivered) == (expired_at < 2, [])


async def test_signs_of_life_keep_the_lease_of_a_transfer_that_has_nothing_to_send() -> None:
    """A prompt that waits for its turn or its pictures for several lifetimes of its lease."""
    now = [0.0]
    receiver = Receiver(ttl_s=5.0, clock=lambda: now[0])
    push = KvPush(SOURCE, receiver.ticket([3]), prompt_of([0]), MemoryLinks(receiver.target), Transport(LAYOUT))
    for now[0] in (4.0, 8.0, 12.0):
        push.keep()
        while receiver.reservations.expired(now[0] + 4.9):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0)
    push.ready(LAYOUT.block_size)
    await push.finish(FIRST)
    assert len(receiver.delivered) == 1


async def test_signs_of_life_do_not_hide_a_receiver_that_answers_nothing() -> None:
    ends = Ends("grpc", Fault("drop", times=10_000), answer_s=0.02)
    push = ends.push()
    push.ready(len(FROM) * LAYOUT.block_size)
    failing = asyncio.ensure_future(push.acknowledged())
    while not failing.done():
        push.keep()
        await asyncio.sleep(0.001)
    with pytest.raises(UnavailableError, match="no answer"):
        await failing


async def test_sender_gives_up_when_the_lease_of_its_ticket_is_over() -> None:
    receiver = Receiver(ttl_s=0.06, clock=lambda: 0.0)
    links = FaultyLinks(MemoryLinks(receiver.target), Fault("fail", times=10_000))
    push = KvPush(SOURCE, receiver.ticket([3]), prompt_of([0]), links, Transport(LAYOUT, "grpc"))
    push.ready(LAYOUT.block_size)
    with pytest.raises(UnavailableError, match="broke"):
        await push.finish(FIRST)
    assert links.streams <= 2, "the second pause would outlast the lease"


async def test_abort_is_idempotent_before_and_after_the_end() -> None:
    """F17."""
    ends = Ends("grpc")
    push = await ends.deliver()
    push.abort()
    push.abort()
    await push.acknowledged()
    given_up = ends.push(ends.receiver.ticket([0]), [0])
    given_up.abort()
    given_up.abort()
    with pytest.raises(asyncio.CancelledError):
        await given_up.acknowledged()
    ends.receiver.reservations.close("unknown")


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
