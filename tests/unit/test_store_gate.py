"""The gate in front of Redis: who is turned away, and when it opens again."""

from __future__ import annotations

from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import OutOfMemoryError

from common.store.gate import Gate
from triptych.errors import UnavailableError


class Server:
    """The one thing that a gate asks of Redis."""

    def __init__(self) -> None:
        self.pings, self.up = 0, False

    async def ping(self) -> bool:
        self.pings += 1
        if not self.up:
            raise LinkError
        return True


class Clock:
    """Time of the test."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(server: Server, clock: Clock) -> Gate:
    return Gate(cast("Redis", server), retry_s=5.0, clock=clock)


async def fail(gate: Gate, error: Exception) -> None:
    with pytest.raises(UnavailableError):
        async with gate():
            raise error


async def work(gate: Gate) -> str:
    async with gate():
        return "done"


async def test_after_a_failure_nobody_waits(gate: Gate, server: Server) -> None:
    await fail(gate, LinkError())
    with pytest.raises(UnavailableError):
        await work(gate)
    assert (server.pings, gate.closed) == (0, True)


async def test_one_ping_a_while_decides(gate: Gate, server: Server, clock: Clock) -> None:
    await fail(gate, LinkError())
    clock.now += 5
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await work(gate)
    assert server.pings == 1


async def test_it_opens_when_the_server_is_back(gate: Gate, server: Server, clock: Clock) -> None:
    await fail(gate, TimeoutError())
    server.up = True
    clock.now += 5
    assert await work(gate) == "done"
    assert not gate.closed


@pytest.mark.parametrize("error", [OutOfMemoryError("OOM")])
async def test_a_server_that_is_full_is_not_down(gate: Gate, error: Any) -> None:
    await fail(gate, error)
    assert await work(gate) == "done"


async def test_an_error_of_the_caller_is_none_of_redis(gate: Gate) -> None:
    with pytest.raises(KeyError):
        async with gate():
            raise KeyError
    assert not gate.closed
