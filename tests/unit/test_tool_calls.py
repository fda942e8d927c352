"""Function calls in the text of an answer, however it arrives."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.answers.reader import merge
from services.router.answers.tool_calls import ToolCallReader

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "a } \\" b", "n": [1, {"x": 2}]}}\n</tool_call>'
OTHER = '<tool_call>{"arguments": {"b": 1}, "name": "other"}</tool_call>'
NO_CALLS = [" ", "\n", "<tool_call>", "</tool_call>", "<tool_call>{nonsense}</tool_call>", '{"name": "a"', "<tool"]
PIECES = [
    "Hello",
    " ",
    "\n",
    "<tool",
    "_call>",
    "<",
    CALL,
    OTHER,
    "<tool_call>{nonsense}</tool_call>",
    "</tool_call>",
    "ü",
]


def read(pieces: list[str], single: bool = False) -> tuple[str, list[tuple[str, str]], int]:
    """Text, calls with their arguments, and how many were counted."""
    reader = ToolCallReader(single)
    said = [*(reader.push(piece) for piece in pieces), reader.finish()]
    calls = merge(delta for each in said for delta in each.calls)
    return "".join(each.text for each in said), [(call.name, call.arguments) for call in calls], reader.calls


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=6), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_how_the_text_is_cut_changes_nothing(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cut = [text[start:end] for start, end in pairwise(edges)]
    assert read(cut) == read([text]) == read(list(text))


@given(pieces=st.lists(st.one_of(st.sampled_from(NO_CALLS), st.text(max_size=5)), max_size=6))
def test_text_without_calls_is_left_alone(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert read(list(text)) == (text, [], 0)


def test_calls_are_taken_out_of_the_text_with_the_space_around_them() -> None:
    text, calls, count = read([f"I look. \n{CALL}\n{OTHER}\n"])
    assert (text, count) == ("I look.", 2)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("look", {"at": 'a } " b', "n": [1, {"x": 2}]}),
        ("other", {"b": 1}),
    ]


def test_arguments_arrive_before_the_call_is_complete() -> None:
    reader = ToolCallReader(single=False)
    early = reader.push(CALL[: CALL.index('"n"')])
    assert early.calls[0].name == "look" and early.calls[0].id.startswith("call_")
    assert early.calls[1].arguments.startswith('{"at"')


@pytest.mark.parametrize("body", ["{nonsense}", '{"name": 5', "[1]", '{"arguments": {}}', ""])
def test_what_only_looks_like_a_call_is_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert read(list(text)) == (text, [], 0)


def test_a_call_that_is_cut_off_keeps_its_beginning() -> None:
    assert read([CALL[: CALL.index(', {"x"')]])[1] == [("look", r'{"at": "a } \" b", "n": [1')]
    assert read(["abc <tool_call>\n{"]) == ("abc <tool_call>\n{", [], 0)


def test_a_single_call_ends_the_answer() -> None:
    reader = ToolCallReader(single=True)
    reader.push(CALL[:-1])
    assert not reader.ended
    reader.push(">" + OTHER)
    assert (reader.ended, reader.calls) == (True, 1)
