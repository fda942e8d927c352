"""The router with real workers: answers in a language, several answers, and answers that go on elsewhere."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, Field

from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from tests.checkpoints import CheckpointCache
from tests.integration.test_hand_over import text_prompt
from tests.reference import Reference
from tests.tool_model import tool_model
from tests.workers import Pair, running_combined, running_pair
from triptych.errors import InvalidArgumentError
from triptych.v1.types_pb2 import Grammar, Prompt, SamplingParams


class Person(BaseModel):
    """Small enough for a model that says nonsense to finish."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8, pattern="^[a-z]+$")
    age: int = Field(ge=0, le=150)


FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema(), "strict": True}}
SCHEMA = Grammar(json_schema=json.dumps(Person.model_json_schema()))


@pytest.fixture(scope="module")
def model(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_model(checkpoints.get("qwen2_vl"), tmp_path_factory.mktemp("real") / "model", weights=True)


@asynccontextmanager
async def serving(model: Path, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A router over a pair of workers."""
    settings: dict[str, Any] = {"model": model, "redis_url": redis_url, "http_port": 0, "drain_grace_s": 0}
    router = RouterProcess(RouterSettings(**settings))
    async with running_pair(model, redis_url) as pair:
        await router.start()
        try:
            base_url = f"http://127.0.0.1:{router.http_port}"
            async with httpx.AsyncClient(base_url=base_url, timeout=60) as http:
                async with asyncio.timeout(60):
                    while len((await http.get("/readyz")).json()["missing"]) > 1:  # noqa: ASYNC110 nothing tells us
                        await asyncio.sleep(0.05)
                yield http
            assert await pair.idle(), "blocks or requests were left behind"
        finally:
            await router.stop()


@pytest.fixture
async def http(model: Path, valkey_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(model, valkey_url) as http:
        yield http


async def chat(http: httpx.AsyncClient, content: str = "Who is it?", **fields: Any) -> list[Any]:
    """The choices of one answer."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 40, **fields}
    answer = await http.post("/v1/chat/completions", json=body)
    choices: list[Any] = answer.json()["choices"]
    return choices


def texts(choices: list[Any]) -> list[str]:
    return [choice["message"]["content"] for choice in choices]


async def test_answers_are_in_their_language(http: httpx.AsyncClient) -> None:
    greedy = await chat(http, response_format=FORMAT, temperature=0)
    drawn = await chat(http, response_format=FORMAT, temperature=2, seed=3, n=4, frequency_penalty=2)
    people = [Person.model_validate_json(text) for text in texts([*greedy, *drawn])]
    assert len(set(texts(drawn))) == 4 and len(people) == 5
    assert {choice["finish_reason"] for choice in (*greedy, *drawn)} == {"stop"}
    regex = {"type": "grammar", "syntax": "regex", "definition": "(red|blue) [0-9]{3}"}
    assert re.fullmatch("(red|blue) [0-9]{3}", texts(await chat(http, response_format=regex))[0])


async def test_a_required_call_fits_its_function(http: httpx.AsyncClient) -> None:
    function = {"name": "meet", "parameters": Person.model_json_schema(), "strict": True}
    tools = [{"type": "function", "function": function}]
    (choice,) = await chat(http, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=120)
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "meet")
    Person.model_validate_json(call["function"]["arguments"])


async def test_a_seed_means_the_same_alone_among_choices_and_in_a_batch(http: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 20, "ignore_eos": True}
    alone = texts(await chat(http, **asked))
    choices = texts(await chat(http, **asked, n=3))
    others = [chat(http, f"Something else {seed}", **{**asked, "seed": seed}) for seed in range(7)]
    batch, *_ = await asyncio.gather(chat(http, **asked), *others)
    assert alone == choices[:1] == texts(batch)
    assert len(set(choices)) == 3
    unseeded = [texts(await chat(http, temperature=1, max_tokens=20, ignore_eos=True))[0] for _ in range(3)]
    assert len(set(unseeded)) > 1


async def test_every_token_has_a_log_probability_and_no_answer_is_that_of_another(http: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "ignore_eos": True, "n": 2}
    sampling = {"temperature": 1, "seed": 5, "logprobs": True, "top_logprobs": 3}
    answer = (await http.post("/v1/chat/completions", json=body | sampling)).json()
    entries = [choice["logprobs"]["content"] for choice in answer["choices"]]
    assert [len(each) for each in entries] == [9, 9]
    assert answer["usage"]["completion_tokens"] == 18
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for each in entries for entry in each)


async def test_a_repeated_prompt_is_counted_as_cached_also_in_a_stream(http: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "the same long question " * 6}], "max_tokens": 2}
    whole = [(await http.post("/v1/chat/completions", json=body)).json()["usage"] for _ in range(2)]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = (await http.post("/v1/chat/completions", json=body | options)).text.splitlines()
    streamed = json.loads(lines[-4].removeprefix("data: "))["usage"]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (*whole, streamed)]
    assert cached[0] == 0 < cached[1] == cached[2]
    assert len({usage["prompt_tokens"] for usage in (*whole, streamed)}) == 1


@pytest.mark.parametrize("combined", [False, True])
async def test_an_answer_in_a_language_goes_on_elsewhere(model: Path, valkey_url: str, combined: bool) -> None:
    reference = Reference(model)
    other = running_combined(model, valkey_url) if combined else running_pair(model, valkey_url)
    async with running_pair(model, valkey_url) as first, other as second:
        prompt = first.prompt(text_prompt(reference, 30))
        for sampling in (
            SamplingParams(max_tokens=60, temperature=0, grammar=SCHEMA),
            SamplingParams(max_tokens=60, temperature=1, seed=11, grammar=SCHEMA),
        ):
            whole = (await first.ask(prompt, sampling)).token_ids
            Person.model_validate_json(str(reference.tokenizer.decode(whole, skip_special_tokens=True)))
            for cut in (1, 3, len(whole) - 1):
                assert await resumed(second, prompt, sampling, whole[:cut]) == whole[cut:]
            with pytest.raises(InvalidArgumentError, match="grammar"):
                await resumed(second, prompt, sampling, [whole[0], whole[0]])
        assert await second.idle(), "a failed answer left blocks behind"


async def resumed(pair: Pair, prompt: Prompt, sampling: SamplingParams, given: list[int]) -> list[int]:
    rest = Prompt(token_ids=[*prompt.token_ids, *given], cache_scope=prompt.cache_scope, generated=len(given))
    return (await pair.ask(rest, sampling)).token_ids
