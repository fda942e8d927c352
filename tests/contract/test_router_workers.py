"""Which workers get requests: those that are there, that are free, and that have the prompt."""

from __future__ import annotations

import asyncio
import re
import socket

from common.store.registry import Registration
from tests.contract.router_bench import Bench, eventually, text_of
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


async def test_a_worker_that_drains_gets_no_requests(wide: Bench) -> None:
    worker = wide.fleet.workers["decode"][0]
    worker.info.draining = True
    await worker.registration.announce()
    cluster = wide.router.routing.cluster
    await eventually(lambda: len(cluster.ready(WorkerRole.WORKER_ROLE_DECODE)) == 1)
    await asyncio.gather(*(wide.chat() for _ in range(6)))
    assert worker.requests == []
