"""Who may fill reserved blocks, and for how long: leases, the signs of life that prolong them, and tickets used up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.kv.frames import Frame, PushFrame
from common.kv.payload import checksum
from common.kv.receiver import PushReceiver
from common.kv.sender import KvPush
from common.kv.transport import Transport
from tests.kv_ends import FIRST, LAYOUT, Receiver, content, prompt_of
from tests.kv_links import Fault, FaultyLinks, MemoryLinks
from tests.kv_pushing import FROM, SOURCE, Ends
from triptych.errors import FailedPreconditionError, UnavailableError
from triptych.v1 import kv_pb2


async def test_another_transfer_of_a_delivered_reservation_is_refused() -> None:
    ends = Ends("grpc")
    await ends.deliver()
    with pytest.raises(FailedPreconditionError, match="not valid"):
        await ends.deliver()
    assert ends.arrived()


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
        push.renew()
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
        push.renew()
        await asyncio.sleep(0.001)
    with pytest.raises(UnavailableError, match="no answer"):
        await failing


async def test_no_sign_of_life_follows_the_first_token() -> None:
    """It would reach a receiver that has answered and left."""
    fault = Fault("pause", nth=1)
    ends = Ends("grpc", fault)
    push = ends.push(ends.receiver.ticket([3]), [0])
    push.ready(LAYOUT.block_size)
    await fault.reached.wait()
    push.renew()
    finishing = asyncio.ensure_future(push.finish(FIRST))
    await asyncio.sleep(0)
    fault.resume.set()
    await finishing
    assert ends.links.seen == ["header", "chunk", "chunk", "first_token"]


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
