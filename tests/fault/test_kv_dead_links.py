"""Links that are silent for long, or dead without anybody having been told. Keepalive is scaled down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

import common.rpc.server
import triptych.channel
from common.kv.links import GrpcLinks
from common.kv.resuming import ATTEMPTS
from common.kv.sender import KvPush
from common.kv.session import ANSWER_S
from common.kv.transport import Transport
from common.rpc.channels import Channels
from tests.kv_ends import FIRST, LAYOUT, Receiver, content, noisy_cache, prompt_of, serving
from tests.kv_links import FaultyLinks
from tests.proxy import Proxy, running_proxy

PING_BYTES = 17
SOURCE = noisy_cache(32, seed=1)
CLIENT, SERVER = dict(triptych.channel.CHANNEL_OPTIONS), dict(triptych.channel.SERVER_OPTIONS)
KEEPALIVE, TIMEOUT = "grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms"
LEAST_INTERVAL, STRIKES = "grpc.http2.min_ping_interval_without_data_ms", "grpc.http2.max_ping_strikes"


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped intervals divided by 200; the server takes offence as soon as gRPC's default would."""
    quick = {KEEPALIVE: CLIENT[KEEPALIVE] // 200}
    monkeypatch.setattr(triptych.channel, "CHANNEL_OPTIONS", list((CLIENT | quick).items()))
    server = SERVER | quick | {LEAST_INTERVAL: SERVER[LEAST_INTERVAL] // 200, STRIKES: 2}
    monkeypatch.setattr(common.rpc.server, "SERVER_OPTIONS", list(server.items()))


@pytest.fixture
def quick_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead link is noticed after 3 s instead of 30."""
    quick = {KEEPALIVE: CLIENT[KEEPALIVE] // 20, TIMEOUT: CLIENT[TIMEOUT] // 5}
    monkeypatch.setattr(triptych.channel, "CHANNEL_OPTIONS", list((CLIENT | quick).items()))


@dataclass
class Line:
    """A sender, a receiver, and the link between them."""

    receiver: Receiver
    proxy: Proxy
    links: FaultyLinks
    transport: Transport

    def push(self, to: list[int], source: list[int]) -> KvPush:
        ticket = self.receiver.ticket(to, address=f"127.0.0.1:{self.proxy.port}")
        return KvPush(SOURCE, ticket, prompt_of(source), self.links, self.transport)

    async def deliver(self, to: list[int], source: list[int]) -> None:
        push = self.push(to, source)
        push.ready(len(source) * LAYOUT.block_size)
        await push.finish(FIRST)


@asynccontextmanager
async def line() -> AsyncIterator[Line]:
    receiver, channels = Receiver(), Channels()
    async with serving(receiver) as address, running_proxy(int(address.rpartition(":")[2])) as proxy:
        yield Line(receiver, proxy, FaultyLinks(GrpcLinks(channels)), Transport(LAYOUT))
        await channels.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what nothing tells us."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("quick_pings")
async def test_a_link_survives_the_pings_of_a_long_silent_prefill() -> None:
    """J03."""
    async with line() as ends:
        push = ends.push([7, 3], [0, 1])
        push.layer_ready(0, 2 * LAYOUT.block_size)
        await ends.links.sent(1)
        staging = ends.transport.staging
        assert staging is not None
        await eventually(lambda: staging.num_free == staging.num_slots)
        before = ends.proxy.sent_bytes
        await eventually(lambda: ends.proxy.sent_bytes > before + 12 * PING_BYTES)
        push.ready(2 * LAYOUT.block_size)
        await push.finish(FIRST)
        assert (ends.links.streams, ends.proxy.connections) == (1, 1)
        assert content(ends.receiver.cache, [7, 3]) == content(SOURCE, [0, 1])


@pytest.mark.usefixtures("quick_timeouts")
async def test_after_a_thousand_transfers_no_slot_is_taken_and_a_dead_link_is_replaced() -> None:
    """F26 and J08: the first transfer after a silent cut arrives, without anybody having been told of the cut."""
    async with line() as ends:
        for _ in range(40):
            await asyncio.gather(*(ends.deliver([n], [n]) for n in range(25)))
        staging = ends.transport.staging
        assert staging is not None and staging.num_free == staging.num_slots
        assert len(ends.receiver.delivered) == 1000
        before = ends.proxy.connections
        ends.proxy.cut()
        await ends.deliver([30, 31], [4, 9])
        assert content(ends.receiver.cache, [30, 31]) == content(SOURCE, [4, 9])
        assert ends.proxy.connections == before + 1
        assert len(ends.receiver.reservations) == 0


def test_a_transfer_is_tried_for_longer_than_it_takes_to_notice_a_dead_link() -> None:
    assert (CLIENT[KEEPALIVE] + CLIENT[TIMEOUT]) / 1000 < (ATTEMPTS - 1) * ANSWER_S
