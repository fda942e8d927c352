"""Several answers to one request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.contract.router_bench import TOKENIZER, Bench, eventually
from tests.contract.test_openai_chat import events_of
from tests.contract.test_router_grpc import generate, request
from triptych.client import Client
from triptych.errors import InternalError
from triptych.v1.router_pb2 import GenerateDelta
from triptych.v1.types_pb2 import Grammar, SamplingParams

TEXTS = ["first answer", "the second one", "and a third"]


def speak(bench: Bench) -> None:
    """Every choice says something else."""
    bench.say(TEXTS[0])
    ids = [TOKENIZER.encode(text, add_special_tokens=False) for text in TEXTS]
    bench.fleet.script.others = dict(enumerate(ids))


def tokens_of(bench: Bench) -> int:
    return sum(map(len, bench.fleet.script.others.values()))


async def test_answers_come_in_order_with_one_account(bench: Bench) -> None:
    speak(bench)
    answer = (await bench.chat(n=3)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == TEXTS
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    alone = (await bench.chat()).json()["usage"]
    assert answer["usage"]["prompt_tokens"] == alone["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == tokens_of(bench)


async def test_a_stream_names_the_answer_of_every_chunk(bench: Bench) -> None:
    speak(bench)
    streamed = await bench.chat(n=3, stream=True, stream_options={"include_usage": True})
    *chunks, account = [json.loads(event) for event in events_of(streamed.text)[:-1]]
    said: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    for chunk in chunks:
        said[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    for index, choices in said.items():
        assert "".join(choice["delta"].get("content", "") for choice in choices) == TEXTS[index]
        assert (choices[0]["delta"]["role"], choices[-1]["finish_reason"]) == ("assistant", "stop")
    assert account["usage"]["completion_tokens"] == tokens_of(bench)


async def test_siblings_begin_after_the_first_token_and_differ_in_their_random_keys(bench: Bench) -> None:
    speak(bench)
    bench.fleet.script.pause_after = 0
    asking = asyncio.ensure_future(bench.chat(n=3, seed=7))
    await eventually(lambda: bench.fleet.running == 1)
    assert len(bench.fleet.requests("decode")) == 1
    bench.fleet.script.resume.set()
    await asking
    sampling = [asked.sampling for asked in bench.fleet.requests("decode")]
    assert sorted((each.seed, each.choice_index) for each in sampling) == [(7, 0), (7, 1), (7, 2)]
    assert len({asked.request_id for asked in bench.fleet.requests("decode")}) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_the_failure_of_one_answer_ends_all(bench: Bench, stream: bool) -> None:
    speak(bench)
    bench.fleet.script.pause_after = 2
    bench.fleet.script.error_after_tokens = InternalError("decode broke")
    answer = await bench.chat(n=3, stream=stream)
    last = json.loads(events_of(answer.text)[-2]) if stream else answer.json()
    assert last["error"]["message"] == "decode broke"
    await eventually(lambda: bench.fleet.running == 0)


async def test_leaving_ends_all_answers(bench: Bench) -> None:
    speak(bench)
    bench.fleet.script.pause_after = 1
    call = bench.stub.Generate(request(n=3))
    await eventually(lambda: len(bench.fleet.requests("decode")) == 3)
    call.cancel()
    await eventually(lambda: bench.fleet.running == 0)
    assert call.cancelled()


async def test_every_answer_has_a_finish_and_the_last_one_the_account(bench: Bench) -> None:
    speak(bench)
    responses = await generate(bench, request(n=3))
    finishes = [response.finished for response in responses if response.HasField("finished")]
    assert sorted(finish.index for finish in finishes) == [0, 1, 2]
    assert [finish.HasField("usage") for finish in finishes] == [False, False, True]


async def test_an_answer_in_a_language_keeps_it_on_another_worker(wide: Bench) -> None:
    wide.say('{"a": 1, "b": [2, 3]}')
    wide.fleet.script.pause_after = 3
    deltas: list[GenerateDelta] = []
    sampling = SamplingParams(grammar=Grammar(json_schema='{"type": "object"}'))
    async for response in wide.stub.Generate(request(sampling=sampling)):
        deltas.append(response.delta)
        # `started` and three tokens.
        if len(deltas) == 4:
            (first,) = [worker for worker in wide.fleet.workers["decode"] if worker.running]
            await first.die()
    assert "".join(delta.text for delta in deltas) == '{"a": 1, "b": [2, 3]}'
    before, after = sorted(wide.fleet.requests("decode"), key=lambda asked: asked.prompt.generated)
    assert (before.sampling, after.prompt.generated) == (after.sampling, 3)


async def test_the_sdk_gives_all_answers(bench: Bench) -> None:
    speak(bench)

    def ask() -> list[str]:
        with Client(f"127.0.0.1:{bench.router.port}") as client:
            return [answer.text for answer in client.generate("hi", n=3).answers()]

    assert await asyncio.to_thread(ask) == TEXTS
