"""Function calls over the OpenAI interface, with a model whose chat template knows them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.router_bench import MODEL, TOKENIZER, Bench, open_bench, png
from tests.contract.test_openai_chat import client_of, events_of, image_part
from tests.contract.test_router_grpc import generate, request
from tests.tool_model import tool_model
from triptych.aio import AsyncClient
from triptych.messages import Message, tool, user
from triptych.v1.types_pb2 import FinishReason, Tool

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the door"}}\n</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_model(MODEL, tmp_path_factory.mktemp("tools") / "model")


@pytest.fixture
async def tools(valkey_url: str, model: Path) -> AsyncIterator[Bench]:
    """A router for a model with functions."""
    named = {"model": model, "model_name": "triptych-demo"}
    async with open_bench(valkey_url, ("encoder", "prefill", "decode"), **named) as bench:
        bench.say(CALL)
        yield bench


async def test_a_call_is_no_text(tools: Bench) -> None:
    choice = (await tools.chat(tools=[TOOL])).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert call["function"] == {"name": "look", "arguments": '{"at": "the door"}'}
    assert (call["type"], call["id"][:5]) == ("function", "call_")


async def test_a_stream_gives_calls_in_pieces(tools: Bench) -> None:
    tools.say(f"I look.\n{CALL}\n{CALL}")
    streamed = await tools.chat(tools=[TOOL], stream=True)
    choices = [json.loads(event)["choices"][0] for event in events_of(streamed.text)[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "I look."
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls", ())]
    assert [(piece["index"], piece["function"]["name"]) for piece in pieces if "id" in piece] == [
        (0, "look"),
        (1, "look"),
    ]
    arguments = ["".join(p["function"]["arguments"] for p in pieces if p["index"] == index) for index in (0, 1)]
    assert arguments == ['{"at": "the door"}'] * 2
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_openai_client_gathers_streamed_calls(tools: Bench) -> None:
    asked: Any = [{"role": "user", "content": "look"}]
    async with (
        client_of(tools) as client,
        client.chat.completions.stream(model="triptych-demo", messages=asked, tools=[TOOL]) as stream,
    ):
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == [("look", '{"at": "the door"}')]


@pytest.mark.parametrize(
    ("choice", "bound", "told"),
    [
        ("required", True, True),
        ({"type": "function", "function": {"name": "look"}}, True, True),
        ("auto", False, True),
        (None, False, True),
        ("none", False, False),
    ],
)
async def test_a_choice_of_tools_reaches_prompt_and_workers(tools: Bench, choice: Any, bound: bool, told: bool) -> None:
    answer = (await tools.chat(tools=[TOOL], tool_choice=choice)).json()["choices"][0]
    (asked,) = tools.fleet.requests("decode")
    assert asked.sampling.HasField("grammar") == bound
    assert ("Look at a place." in TOKENIZER.decode(asked.prompt.token_ids)) == told
    assert answer["finish_reason"] == ("tool_calls" if told else "stop")


async def test_without_a_call_the_answer_is_text(tools: Bench) -> None:
    tools.say("No need to look.")
    choice = (await tools.chat(tools=[TOOL])).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "No need to look.")
    assert "tool_calls" not in choice["message"]


async def test_a_call_cut_off_by_the_limit_says_so(tools: Bench) -> None:
    most = len(tools.fleet.script.answer) - 12
    choice = (await tools.chat(tools=[TOOL], max_tokens=most)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert '{"at": "the door"}'.startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


async def test_without_parallel_calls_the_first_ends_the_answer(tools: Bench) -> None:
    tools.say(CALL + "\n" + CALL)
    choice = (await tools.chat(tools=[TOOL], parallel_tool_calls=False)).json()["choices"][0]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("tool_calls", 1)


async def test_an_answered_call_with_a_picture_is_read(tools: Bench) -> None:
    first = (await tools.chat(tools=[TOOL])).json()["choices"][0]["message"]
    result = {
        "role": "tool",
        "tool_call_id": first["tool_calls"][0]["id"],
        "content": [{"type": "text", "text": "<|image_pad|> here"}, image_part(png())],
    }
    messages = [{"role": "user", "content": "hello"}, first, result]
    answer = await tools.http.post("/v1/chat/completions", json={"messages": messages, "tools": [TOOL]})
    assert answer.json()["usage"]["triptych"]["images"] == 1
    prompt = tools.fleet.requests("decode")[-1].prompt
    assert CALL in TOKENIZER.decode(prompt.token_ids)
    assert sum(token == 1022 for token in prompt.token_ids) == prompt.images[0].length


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"tools": [TOOL | {"type": "custom"}]}, "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": [{"role": "user", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}]},
        "messages[0].tool_calls",
    ),
]


async def test_bad_functions_and_calls_are_named(tools: Bench) -> None:
    answers = [await tools.chat(**fields) for fields, _ in BAD_FIELDS]
    assert [answer.json()["error"]["param"] for answer in answers] == [param for _, param in BAD_FIELDS]
    assert {answer.status_code for answer in answers} == {400}


async def test_a_model_without_functions_refuses_them(bench: Bench) -> None:
    cases: list[dict[str, Any]] = [{"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"}]
    answers = [await bench.chat(**fields) for fields in (*cases, {"tool_choice": "required"})]
    errors = [answer.json()["error"] for answer in answers]
    assert [(answer.status_code, error["param"]) for answer, error in zip(answers, errors, strict=True)] == [
        (400, "tools"),
        (400, "tools"),
        (400, "tool_choice"),
    ]
    assert "not supported" in errors[0]["message"]


async def test_calls_over_grpc(tools: Bench) -> None:
    responses = await generate(tools, request(tools=[Tool(name="look")]))
    pieces = [piece for response in responses for piece in response.delta.tool_calls]
    assert (pieces[0].name, "".join(piece.arguments for piece in pieces)) == ("look", '{"at": "the door"}')
    assert responses[-1].finished.reason == FinishReason.FINISH_REASON_TOOL_CALLS


async def test_the_sdk_reads_calls_and_answers_them(tools: Bench) -> None:
    async with AsyncClient(f"127.0.0.1:{tools.router.port}") as client:
        first = await client.generate("look", tools=[TOOL], tool_choice="required").answer()
        assert [(call.name, json.loads(call.arguments)) for call in first.tool_calls] == [("look", {"at": "the door"})]
        tools.say("done")
        turns = [user("look"), Message("assistant", (first.text,), first.tool_calls), tool(first.tool_calls[0], "open")]
        second = await client.generate(turns, tools=[TOOL]).answer()
    assert (first.finish_reason, second.finish_reason, second.text) == ("tool_calls", "stop", "done")
