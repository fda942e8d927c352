"""Functions, languages and several answers, from the caller's side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triptych.errors import InvalidArgumentError, UnavailableError
from triptych.exchange import Exchange
from triptych.messages import Message, ToolCall, as_messages, tool, user
from triptych.v1.router_pb2 import (
    GenerateDelta,
    GenerateFinished,
    GenerateRequest,
    GenerateResponse,
    GenerateStarted,
    ToolCallDelta,
    ToolChoice,
)
from triptych.v1.types_pb2 import FinishReason, Tool, Usage

PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}


def request(**options: Any) -> GenerateRequest:
    return Exchange("hi", "", options).request  # type: ignore[arg-type]  # wrong ones, too


@pytest.mark.parametrize("given", [FUNCTION, {"type": "function", "function": FUNCTION}])
def test_functions_may_be_written_as_openai_has_them(given: dict[str, Any]) -> None:
    (found,) = request(tools=[given]).tools
    assert (found.name, found.description, json.loads(found.parameters), found.strict) == ("f", "d", PARAMETERS, True)
    assert list(request(tools=[found]).tools) == [found]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode=ToolChoice.MODE_NONE)),
        ("required", ToolChoice(mode=ToolChoice.MODE_REQUIRED)),
        ("f", ToolChoice(name="f")),
    ],
)
def test_a_choice_of_functions(choice: str, expected: ToolChoice) -> None:
    assert request(tools=[Tool(name="f")], tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize("options", [{"tool_choice": {"type": "function"}}, {"tools": 5}, {"json_schema": {"a": {1}}}])
def test_options_of_a_wrong_type_are_invalid_arguments(options: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        request(**options)


def test_a_schema_may_be_an_object_or_its_text() -> None:
    for schema in (PARAMETERS, json.dumps(PARAMETERS)):
        assert json.loads(request(json_schema=schema).sampling.grammar.json_schema) == PARAMETERS
    assert request(regex="a+", n=3).sampling.grammar.regex == "a+"
    assert not request().sampling.HasField("grammar")


@pytest.mark.parametrize("options", [{"regex": "a", "lark": "start: a"}, {"tools": ["f"]}, {"tools": [{"name": 5}]}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        request(**options)


def test_calls_and_their_answers_travel_in_messages() -> None:
    call = ToolCall("1", "f", '{"x": 2}')
    turns = [user("hi"), Message("assistant", (), (call,)), tool(call, "ok")]
    asked = Exchange(turns, "", {}).request.messages
    assert (asked[1].tool_calls[0].arguments, asked[2].tool_call_id) == ('{"x": 2}', "1")
    function = {"name": "f", "arguments": '{"x": 2}'}
    as_dict = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    assert as_messages([as_dict])[0].tool_calls == (call,)
    with pytest.raises(InvalidArgumentError):
        as_messages([{"role": "assistant", "tool_calls": [{"id": "1"}]}])


def test_several_answers_end_with_the_account() -> None:
    exchange = Exchange("hi", "", {"n": 2})
    pieces = [ToolCallDelta(index=0, id="c", name="f"), ToolCallDelta(index=0, arguments="{}")]
    stop, calls = FinishReason.FINISH_REASON_STOP, FinishReason.FINISH_REASON_TOOL_CALLS
    events: list[dict[str, Any]] = [
        {"started": GenerateStarted(request_id="r")},
        {"delta": GenerateDelta(text="b", index=1)},
        {"delta": GenerateDelta(text="a", tool_calls=pieces)},
        {"finished": GenerateFinished(index=1, reason=stop)},
    ]
    for event in events:
        exchange.on_response(GenerateResponse(**event))
    with pytest.raises(UnavailableError):
        exchange.answers()
    exchange.on_response(GenerateResponse(finished=GenerateFinished(reason=calls, usage=Usage(completion_tokens=9))))
    first, second = exchange.answers()
    assert (first.text, first.tool_calls, first.finish_reason) == ("a", (ToolCall("c", "f", "{}"),), "tool_calls")
    assert (second.text, second.usage.completion_tokens) == ("b", 9)
