"""Which workers get requests: those that are there, that are free, and that have the prompt."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

import pytest

import triptych.channel
from common.store.registry import Registration
from tests.contract.router_bench import Bench, eventually, open_bench, text_of
from tests.proxy import running_proxy
from tests.valkey import run_valkey
from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole


async def test_load_is_spread_over_workers(wide: Bench) -> None:
    wide.say("one two")
    wide.fleet.script.pause_after = 1
    asking = [asyncio.create_task(wide.chat()) for _ in range(4)]
    await eventually(lambda: len(wide.fleet.requests("decode")) == 4)
    assert [len(worker.requests) for worker in wide.fleet.workers["decode"]] == [2, 2]
    wide.fleet.script.resume.set()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * 4


async def test_the_same_prompt_goes_where_it_is_cached(wide: Bench) -> None:
    view = wide.router.routing.view
    for count in range(1, 6):
        await wide.chat("the same long question " * 20)
        await eventually(lambda: view.size > 0)
        assert sorted(len(worker.requests) for worker in wide.fleet.workers["prefill"]) == [0, count]
    matched = re.search(r"\ntriptych_router_matched_tokens_total (\S+)", (await wide.http.get("/metrics")).text)
    assert matched is not None
    assert float(matched[1]) > 4 * 16


async def test_a_killed_worker_gets_no_requests_though_it_is_registered(wide: Bench) -> None:
    wide.say("fine")
    dead = wide.fleet.workers["decode"][0]
    await dead.die()
    lost = wide.router.routing.watches.lost
    await eventually(lambda: lost(dead.info))
    assert [text_of(await wide.chat()) for _ in range(4)] == ["fine"] * 4
    assert dead.requests == []


async def test_a_worker_that_accepts_and_never_answers_slows_nobody_down(wide: Bench) -> None:
    """L07."""
    wide.say("fine")
    mute = socket.create_server(("127.0.0.1", 0))
    info = WorkerInfo(instance_id="mute", address=f"127.0.0.1:{mute.getsockname()[1]}")
    info.MergeFrom(WorkerInfo(role=WorkerRole.WORKER_ROLE_DECODE, model="triptych-demo", num_blocks=10**6))
    registration = Registration(wide.redis, lambda: info)
    registration.start()
    await eventually(lambda: info in wide.router.routing.cluster.known())
    assert [text_of(await wide.chat()) for _ in range(3)] == ["fine"] * 3
    assert [(await wide.http.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    await registration.close()
    mute.close()


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead link is noticed within two seconds instead of 30."""
    quick = {"grpc.keepalive_time_ms": 200, "grpc.http2.ping_timeout_ms": 1000}
    options = list((dict(triptych.channel.CHANNEL_OPTIONS) | quick).items())
    monkeypatch.setattr(triptych.channel, "CHANNEL_OPTIONS", options)


@pytest.mark.usefixtures("quick_pings")
async def test_a_link_that_died_in_silence_costs_no_request_and_is_replaced(valkey_url: str) -> None:
    """J08."""
    async with open_bench(valkey_url, ("encoder", "prefill", "decode", "decode")) as bench:
        bench.say("fine")
        one, watches = bench.fleet.workers["decode"][0], bench.router.routing.watches
        async with running_proxy(one.server.port) as proxy:
            one.info.address = f"127.0.0.1:{proxy.port}"
            await one.registration.announce()
            await eventually(lambda: not watches.lost(one.info))
            proxy.cut()
            answers = await asyncio.gather(*(bench.chat() for _ in range(4)))
            assert [text_of(answer) for answer in answers] == ["fine"] * 4
            await eventually(lambda: proxy.connections > 1 and not watches.lost(one.info))
            await bench.fleet.workers["decode"][1].die()
            assert text_of(await bench.chat()) == "fine"


async def test_an_address_that_another_role_took_over_is_not_trusted(wide: Bench) -> None:
    wide.say("fine")
    one = wide.fleet.workers["decode"][0]
    one.info.address = wide.fleet.workers["encoder"][0].info.address
    await one.registration.announce()
    routing = wide.router.routing
    await eventually(lambda: one.info in routing.cluster.known() and routing.watches.lost(one.info))
    assert [text_of(await wide.chat()) for _ in range(4)] == ["fine"] * 4
    assert one.requests == []


async def test_workers_that_join_get_requests(bench: Bench) -> None:
    """J05."""
    for _ in range(2):
        await bench.fleet.add("decode")
    cluster = bench.router.routing.cluster
    await eventually(lambda: len(cluster.ready(WorkerRole.WORKER_ROLE_DECODE)) == 3)
    bench.say("one two")
    bench.fleet.script.pause_after = 1
    asking = [asyncio.create_task(bench.chat()) for _ in range(3)]
    await eventually(lambda: [len(worker.requests) for worker in bench.fleet.workers["decode"]] == [1, 1, 1])
    bench.fleet.script.resume.set()
    await asyncio.gather(*asking)


@pytest.mark.parametrize("change", [{"draining": True}, {"model": "another"}])
async def test_a_worker_that_is_no_longer_meant_ends_what_it_has_and_gets_no_more(
    wide: Bench, change: dict[str, Any]
) -> None:
    """L04: its port is open all the time."""
    wide.say("one two")
    wide.fleet.script.pause_after = 1
    asking = asyncio.create_task(wide.chat())
    await eventually(lambda: len(wide.fleet.requests("decode")) == 1)
    (worker,) = (each for each in wide.fleet.workers["decode"] if each.requests)
    worker.info.MergeFrom(WorkerInfo(**change))
    await worker.registration.announce()
    cluster = wide.router.routing.cluster
    await eventually(lambda: len(cluster.ready(WorkerRole.WORKER_ROLE_DECODE)) == 1)
    wide.fleet.script.resume.set()
    assert [text_of(await wide.chat()) for _ in range(6)] == ["one two"] * 6
    assert text_of(await asking) == "one two"
    assert len(worker.requests) == 1


async def test_a_worker_that_leaves_while_nobody_can_read_the_registry_is_forgotten() -> None:
    """L01: its goodbye is missed, and requests go to the other one meanwhile."""
    with run_valkey() as server:
        async with open_bench(server.url, ("encoder", "prefill", "decode", "decode")) as bench:
            bench.say("fine")
            server.stop()
            while not (await bench.http.get("/readyz")).json()["degraded"]:
                pass
            gone = bench.fleet.workers["decode"][0]
            await gone.registration.close()
            await gone.die()
            assert [text_of(await bench.chat()) for _ in range(4)] == ["fine"] * 4
            assert gone.info in bench.router.routing.cluster.known()
            server.start()
            await eventually(lambda: gone.info not in bench.router.routing.cluster.known())
            assert text_of(await bench.chat()) == "fine"
