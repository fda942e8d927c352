"""How the router drives the stages: order, spreading, failures, and nothing left over."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from typing import Any

import httpx
import pytest

from benchmarks.soak import Soak
from common.store.registry import Registration
from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import image_part
from tests.contract.test_router_grpc import generate, image, put, request
from triptych.errors import (
    FailedPreconditionError,
    ImagesNotFoundError,
    InvalidArgumentError,
    ResourceExhaustedError,
    TriptychError,
    UnavailableError,
    WrongInstanceError,
)
from triptych.status import rpc_errors
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import ContentPart, Message
from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole


def text_of(answer: httpx.Response) -> str:
    """The text of an answer, whole or streamed."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    chunks = [chunk for chunk in events(answer) if chunk["choices"]]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def usage_of(answer: httpx.Response) -> dict[str, Any]:
    """The account of an answer, whole or streamed."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return dict(answer.json()["usage"])
    return dict(events(answer)[-1]["usage"])


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a streamed answer."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


PICTURES = [image_part(png(color=color)) for color in ("red", "green", "blue", "white")]


async def test_prefill_begins_before_the_pictures_are_encoded(bench: Bench) -> None:
    gate = bench.fleet.script.encode_gate = asyncio.Event()
    asking = asyncio.create_task(bench.chat(PICTURES))
    await eventually(lambda: bool(bench.fleet.requests("prefill")))
    gate.set()
    assert (await asking).json()["usage"]["triptych"]["embedding_misses"] == 4


async def test_pictures_of_one_request_are_spread_over_encoders(wide: Bench) -> None:
    await wide.chat(PICTURES)
    shares = [len(request.images) for request in wide.fleet.requests("encoder")]
    assert shares == [2, 2]


async def test_load_is_spread_over_workers(wide: Bench) -> None:
    wide.say("one two")
    wide.fleet.script.pause_after = 1
    asking = [asyncio.create_task(wide.chat()) for _ in range(4)]
    await eventually(lambda: len(wide.fleet.requests("decode")) == 4)
    assert [len(worker.requests) for worker in wide.fleet.workers["decode"]] == [2, 2]
    wide.fleet.script.resume.set()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * 4


@pytest.mark.parametrize("kind", ["prefill", "decode"])
async def test_a_worker_that_goes_away_before_the_first_token_is_replaced(wide: Bench, kind: str) -> None:
    wide.say("fine")
    gate = wide.fleet.script.encode_gate = asyncio.Event()
    asking = asyncio.create_task(wide.chat(PICTURES))
    await eventually(lambda: bool(wide.fleet.requests("prefill")))
    (busy,) = (worker for worker in wide.fleet.workers[kind] if worker.running)
    await busy.server.drain(0)
    gate.set()
    assert (await asking).json()["choices"][0]["message"]["content"] == "fine"


@pytest.mark.parametrize("stage", ["prefill_errors", "decode_errors"])
@pytest.mark.parametrize("error", [UnavailableError("gone"), WrongInstanceError("no"), FailedPreconditionError("old")])
async def test_an_unavailable_worker_is_replaced(wide: Bench, stage: str, error: TriptychError) -> None:
    wide.say("fine")
    setattr(wide.fleet.script, stage, [error])
    answer = await wide.chat()
    assert answer.json()["choices"][0]["message"]["content"] == "fine"
    assert [len(worker.requests) for worker in wide.fleet.workers["decode"]] == [1, 1]


async def test_the_only_worker_is_tried_again(bench: Bench) -> None:
    bench.fleet.script.prefill_errors = [UnavailableError("link broke")]
    assert (await bench.chat()).status_code == 200


async def test_attempts_are_bounded_and_the_client_is_told_when_to_come_back(bench: Bench) -> None:
    bench.fleet.script.decode_errors = [UnavailableError("10.1.2.3:5 is gone")] * 4
    answer = await bench.chat()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "10.1.2.3" not in answer.text
    assert len(bench.fleet.script.decode_errors) == 1
    text = (await bench.http.get("/metrics")).text
    assert 'retries_total{reason="unavailable"} 2.0' in text
    assert 'gave_up_total{reason="attempts"} 1.0' in text


async def test_other_failures_are_not_repeated(wide: Bench) -> None:
    wide.fleet.script.decode_errors = [ResourceExhaustedError("full")]
    assert (await wide.chat()).status_code == 429
    assert len(wide.fleet.requests("decode")) == 1


async def test_a_failure_of_prefill_ends_decode(bench: Bench) -> None:
    bench.fleet.script.prefill_errors = [InvalidArgumentError("no")]
    assert (await bench.chat()).status_code == 400
    await eventually(lambda: bench.fleet.running == 0)


async def test_a_failure_of_encode_ends_prefill_and_decode(bench: Bench) -> None:
    bench.fleet.script.encode_error = InvalidArgumentError("no")
    assert (await bench.chat(PICTURES)).status_code == 400
    await eventually(lambda: bench.fleet.running == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_goes_on_elsewhere_without_a_gap_or_a_repetition(wide: Bench, stream: bool) -> None:
    wide.say("one two three")
    wide.fleet.script.pause_after = 2
    wide.fleet.script.error_after_tokens = UnavailableError("gone")
    answer = await wide.chat(stream=stream, stream_options={"include_usage": True})
    assert text_of(answer) == "one two three"
    first, second = sorted(wide.fleet.requests("decode"), key=lambda request: request.prompt.generated)
    assert (second.prompt.generated, len(second.prompt.token_ids) - len(first.prompt.token_ids)) == (2, 2)
    usage = usage_of(answer)
    assert usage["prompt_tokens"] == len(first.prompt.token_ids)
    assert usage["completion_tokens"] == len(wide.fleet.script.answer)


async def test_a_finish_that_was_lost_is_asked_for_elsewhere(wide: Bench) -> None:
    wide.say("one two three")
    wide.fleet.script.pause_after = len(wide.fleet.script.answer) - 1
    wide.fleet.script.error_after_tokens = UnavailableError("gone")
    assert text_of(await wide.chat()) == "one two three"


async def test_the_same_prompt_goes_where_it_is_cached(wide: Bench) -> None:
    view = wide.router.routing.view
    for count in range(1, 6):
        await wide.chat("the same long question " * 20)
        await eventually(lambda: view.size > 0)
        assert sorted(len(worker.requests) for worker in wide.fleet.workers["prefill"]) == [0, count]


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


async def test_a_request_over_which_workers_die_is_quarantined(valkey_url: str) -> None:
    async with open_bench(valkey_url, ("encoder", "prefill", *["decode"] * 3)) as bench:
        bench.say("one two three")
        bench.fleet.script.pause_after = 1
        bench.fleet.script.die_after_tokens = True
        answer = await bench.chat("poison")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request_quarantined")
        bench.fleet.script.die_after_tokens = False
        bench.fleet.script.resume.set()
        assert (await bench.chat("poison")).status_code == 422
        assert text_of(await bench.chat("harmless")) == "one two three"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_every_stage(bench: Bench, stream: bool) -> None:
    bench.say("one two three")
    bench.fleet.script.pause_after = 1
    asking = asyncio.create_task(bench.chat(stream=stream))
    await eventually(lambda: bench.fleet.running > 0 and bool(bench.fleet.requests("prefill")))
    asking.cancel()
    await eventually(lambda: bench.fleet.running == 0)
    text = (await bench.http.get("/metrics")).text
    assert 'requests_total{status="cancelled"} 1.0' in text


async def test_a_stop_string_ends_decode(bench: Bench) -> None:
    bench.say("one two three")
    bench.fleet.script.pause_after = 2
    answer = (await bench.chat(stop="one")).json()
    assert answer["choices"][0]["message"]["content"] == ""
    await eventually(lambda: bench.fleet.running == 0)


async def test_the_account_has_prefills_figures(bench: Bench) -> None:
    bench.say("one two three")
    usage = (await bench.chat(stop="one")).json()["usage"]["triptych"]
    assert (usage["kv_transfer_bytes"], usage["times"]["prefill_ns"]) == (11, 7)
    assert usage["times"]["total_ns"] >= usage["times"]["first_token_ns"] > 0


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
    await asyncio.sleep(0.7)
    await asyncio.gather(*(wide.chat() for _ in range(6)))
    assert worker.requests == []


async def test_concurrent_requests_keep_their_answers_apart(wide: Bench) -> None:
    wide.say("the same for all")
    answers: list[httpx.Response] = await asyncio.gather(*(wide.chat(f"question {i}") for i in range(12)))
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"the same for all"}


async def test_a_file_lost_after_admission_is_reported_by_the_name_the_client_knows(valkey_url: str) -> None:
    stages = ("encoder", "prefill", "decode")
    async with open_bench(valkey_url, stages, recent_uploads=0) as bench:
        record = await put(bench, png())
        bench.fleet.script.encode_error = ImagesNotFoundError([record.image_id])
        with pytest.raises(ImagesNotFoundError) as caught:
            await generate(bench, request(image(png())))
        assert caught.value.digests == (record.digest,)
        await eventually(lambda: bench.fleet.running == 0)


class FleetTarget:
    """Scripted workers under a soak: killed ones are replaced, and nothing else is known of them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def ask(self, number: int) -> str:
        """One streamed answer, whatever was asked."""
        messages = [Message(role="user", content=[ContentPart(text=f"question {number}")])]
        with rpc_errors():
            call = self._bench.stub.Generate(GenerateRequest(messages=messages))
            return "".join([response.delta.text async for response in call])

    async def kill(self, rng: random.Random) -> None:
        """A prefill or decode worker dies with all its calls; another one comes."""
        kind = rng.choice(["prefill", "decode"])
        victim = rng.choice(self._bench.fleet.workers[kind])
        await self._bench.fleet.add(kind)
        await victim.die()
        self._bench.fleet.workers[kind].remove(victim)
        await victim.registration.close()

    async def idle(self) -> None:
        """Nobody works any more."""
        await eventually(lambda: self._bench.fleet.running == 0 and self._bench.router.ledger.total == 0)


async def test_a_soak_of_cancels_and_kills_gives_right_answers_and_leaves_nothing(wide: Bench) -> None:
    wide.say("one two three four five")
    target = FleetTarget(wide)
    report = await Soak(target, ["one two three four five"] * 10, random.Random(1)).run(300)
    assert report.ended.total() == 300
    assert set(report.ended) <= {"right", "cancelled"}
    assert report.ended["right"] > 200
