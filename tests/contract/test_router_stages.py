"""How the router drives the stages: order, spreading, failures, and nothing left over."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import image_part
from tests.contract.test_router_grpc import generate, image, put, request
from triptych.errors import (
    ImagesNotFoundError,
    InvalidArgumentError,
)

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


async def test_a_failure_of_prefill_ends_decode(bench: Bench) -> None:
    bench.fleet.script.prefill_errors = [InvalidArgumentError("no")]
    assert (await bench.chat()).status_code == 400
    await eventually(lambda: bench.fleet.running == 0)


async def test_a_failure_of_encode_ends_prefill_and_decode(bench: Bench) -> None:
    bench.fleet.script.encode_error = InvalidArgumentError("no")
    assert (await bench.chat(PICTURES)).status_code == 400
    await eventually(lambda: bench.fleet.running == 0)


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


async def test_refusals_are_counted_once_wherever_they_happen(bench: Bench) -> None:
    assert (await bench.http.post("/v1/chat/completions", content=b"{")).status_code == 400
    assert (await bench.chat(stop=[""])).status_code == 400
    assert (await bench.chat(stop=[""], stream=True)).status_code == 400
    assert (await bench.chat(priority=9)).json()["error"]["param"] == "priority"
    text = (await bench.http.get("/metrics")).text
    assert 'requests_total{status="invalid_argument"} 4.0' in text
