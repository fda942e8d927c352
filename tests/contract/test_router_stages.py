"""How the router drives the stages: order, spreading, failures, and nothing left over."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import image_part
from tests.contract.test_router_grpc import generate, image, put, request
from triptych.errors import ImagesNotFoundError, InvalidArgumentError, ResourceExhaustedError, UnavailableError

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
async def test_an_unavailable_worker_is_replaced_once(wide: Bench, stage: str) -> None:
    wide.say("fine")
    setattr(wide.fleet.script, stage, [UnavailableError("gone")])
    answer = await wide.chat()
    assert answer.json()["choices"][0]["message"]["content"] == "fine"
    assert [len(worker.requests) for worker in wide.fleet.workers["decode"]] == [1, 1]


async def test_the_only_worker_is_tried_again(bench: Bench) -> None:
    bench.fleet.script.prefill_errors = [UnavailableError("link broke")]
    assert (await bench.chat()).status_code == 200


async def test_two_failures_are_enough(bench: Bench) -> None:
    bench.fleet.script.decode_errors = [UnavailableError("gone")] * 3
    assert (await bench.chat()).json()["error"]["code"] == "unavailable"
    assert len(bench.fleet.script.decode_errors) == 1


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


async def test_after_the_first_token_nothing_is_repeated(wide: Bench) -> None:
    wide.say("one two three")
    wide.fleet.script.pause_after = 1
    wide.fleet.script.error_after_tokens = UnavailableError("gone")
    assert (await wide.chat()).status_code == 503
    assert len(wide.fleet.requests("decode")) == 1


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
