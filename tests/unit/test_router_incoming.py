"""What is on its way in is bounded over all callers, in bytes and in time."""

from __future__ import annotations

import asyncio

import pytest

from services.router.caller import Caller
from services.router.pictures.incoming import Incoming
from triptych.errors import DeadlineExceededError, ResourceExhaustedError


def caller(timeout_s: float = 60.0) -> Caller:
    return Caller("", asyncio.get_running_loop().time() + timeout_s)


async def test_bodies_share_the_room_and_give_it_back() -> None:
    incoming = Incoming(100, within_s=60)
    async with incoming.one(caller(), "a body") as first:
        first.reserve(60)
        async with incoming.one(caller(), "a body") as second:
            second.reserve(30)
            with pytest.raises(ResourceExhaustedError) as error:
                second.reserve(50)
            assert error.value.retry_after_s
        assert incoming.held_bytes == 60
    assert incoming.held_bytes == 0


async def test_reserving_again_takes_only_what_is_new() -> None:
    incoming = Incoming(100, within_s=60)
    async with incoming.one(caller(), "a body") as share:
        for size in (10, 40, 40, 30):
            share.reserve(size)
        assert incoming.held_bytes == 40


async def test_a_large_body_alone_is_taken() -> None:
    incoming = Incoming(100, within_s=60)
    async with incoming.one(caller(), "a body") as share:
        share.reserve(500)


async def test_a_slow_body_ends_long_before_its_request_would() -> None:
    incoming = Incoming(100, within_s=0.01)
    with pytest.raises(DeadlineExceededError, match="a body did not arrive in time"):
        await receive_slowly(incoming)
    assert incoming.held_bytes == 0


async def receive_slowly(incoming: Incoming) -> None:
    async with incoming.one(caller(), "a body") as share:
        share.reserve(10)
        await asyncio.sleep(60)
