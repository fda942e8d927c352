"""Clients that others wrote, unmodified: OpenAI's own with structured output, and an agent framework on top of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.contract.router_bench import MODEL, TOKENIZER, Bench, open_bench, png
from tests.contract.test_openai_chat import client_of, image_part
from tests.tool_model import tool_model


class Shape(BaseModel):
    """What is wanted of a picture."""

    kind: Literal["star", "cross"]
    size: int


SHAPE = '{"kind": "star", "size": 3}'


@pytest.fixture
async def tools(valkey_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    """A router for a model with functions."""
    named = {"model": tool_model(MODEL, tmp_path / "model"), "model_name": "triptych-demo"}
    async with open_bench(valkey_url, ("encoder", "prefill", "decode"), **named) as bench:
        yield bench


def schema_of(bench: Bench) -> Any:
    """The schema that the workers were given."""
    return json.loads(bench.fleet.requests("decode")[-1].sampling.grammar.json_schema)


async def test_openai_client_parses_a_picture_into_a_model(bench: Bench) -> None:
    bench.say(SHAPE)
    asked: Any = [{"role": "user", "content": [image_part(png()), {"type": "text", "text": "What is it?"}]}]
    async with client_of(bench) as client:
        answer = await client.chat.completions.parse(model="triptych-demo", messages=asked, response_format=Shape)
    assert answer.choices[0].message.parsed == Shape(kind="star", size=3)
    assert schema_of(bench)["required"] == ["kind", "size"]


async def test_openai_client_without_asyncio_parses_a_function_call(tools: Bench) -> None:
    tools.say(f'<tool_call>\n{{"name": "Shape", "arguments": {SHAPE}}}\n</tool_call>')

    def ask() -> Any:
        with openai.OpenAI(base_url=f"{tools.url}/v1", api_key="none", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "hi"}]
            return client.chat.completions.parse(
                model="triptych-demo",
                messages=messages,
                tools=[openai.pydantic_function_tool(Shape)],
                tool_choice="required",
            )

    (call,) = (await asyncio.to_thread(ask)).choices[0].message.tool_calls
    assert call.function.parsed_arguments == Shape(kind="star", size=3)


def agent_model(client: openai.AsyncOpenAI) -> OpenAIChatModel:
    return OpenAIChatModel("triptych-demo", provider=OpenAIProvider(openai_client=client))


async def test_an_agent_calls_a_function_and_goes_on(tools: Bench) -> None:
    call = '<tool_call>\n{"name": "measure", "arguments": {"what": "door"}}\n</tool_call>'
    tools.fleet.script.turns = [TOKENIZER.encode(text, add_special_tokens=False) for text in (call, "It is 7 wide.")]
    measured = []
    async with client_of(tools) as client:
        agent = Agent(agent_model(client), instructions="Measure things.")

        @agent.tool_plain
        def measure(what: str) -> int:
            """Measure a thing."""
            measured.append(what)
            return 7

        result = await agent.run(["How wide is the door?", BinaryContent(png(), media_type="image/png")])
    assert (result.output, measured) == ("It is 7 wide.", ["door"])
    prompt = TOKENIZER.decode(tools.fleet.requests("decode")[-1].prompt.token_ids)
    assert "Measure a thing." in prompt and '"arguments": {"what": "door"}' in prompt


async def test_an_agent_streams_structured_output(bench: Bench) -> None:
    bench.say(SHAPE)
    async with client_of(bench) as client:
        agent = Agent(agent_model(client), output_type=NativeOutput(Shape))
        async with agent.run_stream("What is it?") as result:
            assert await result.get_output() == Shape(kind="star", size=3)
    assert schema_of(bench)["properties"]["kind"]["enum"] == ["star", "cross"]
