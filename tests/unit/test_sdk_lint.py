"""What the linter finds in requests, and what it leaves alone."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from triptych.errors import InvalidArgumentError
from triptych.lint import Finding, count_tokens, lint, read_requests
from triptych.lint.pixels import identities

Json = dict[str, Any]
RULES = "Be brief."


def data_url(color: str, kind: str = "PNG") -> str:
    file = io.BytesIO()
    Pillow.new("RGB", (20, 10), color).save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def said(role: str, text: str, *urls: str) -> Json:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": role, "content": [*pictures, {"type": "text", "text": text}]}


def chat(*messages: Json, rules: str = RULES, **fields: Any) -> Json:
    return {"messages": [said("system", rules), *messages], **fields}


def tool(name: str, about: str = "does it") -> Json:
    return {"type": "function", "function": {"name": name, "description": about}}


ASK, REPLY, NEXT = said("user", "What is it?", "a.png"), said("assistant", "A star."), said("user", "Of which colour?")
TURN_1, TURN_2 = (ASK,), (ASK, REPLY, NEXT)
LATER = (*TURN_2, said("assistant", "Red."), said("user", "And its size?"))


def only(requests: list[Json]) -> Finding:
    (finding,) = lint(requests)
    return finding


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("It is 2026-11-29 18:04:05 now.", "timestamp"),
        ("Time: 2026-11-29T18:04Z", "timestamp"),
        ("Now: 6:04 pm", "timestamp"),
        ("ts=1795975783", "timestamp"),
        ("Today is 2026-11-29.", "date"),
        ("Today is November 29, 2026.", "date"),
        ("Today is the 29 Nov 2026.", "date"),
        ("User 123e4567-e89b-42d3-a456-426614174000 asks.", "random_id"),
        ("Digest 8f14e45fceea167a5a36dedd4bea2543 follows.", "random_id"),
        ("Id 01ARZ3NDEKTSV4RRFFQ69G5FAV.", "random_id"),
        ("request id: abc", "random_id"),
        ("This is request #17 of the session.", "counter"),
        ("Turn 3.", "counter"),
    ],
)
def test_what_changes_by_itself_is_found_in_instructions(text: str, kind: str) -> None:
    finding = only([chat(ASK, rules=text)])
    assert (finding.message, finding.kind, finding.lost_characters) == (0, kind, 0)
    assert finding.excerpt and finding.excerpt in text and finding.hint


@pytest.mark.parametrize(
    "text",
    [
        "You are a helpful assistant.",
        "Answer in at most 3 sentences.",
        "Use step 1024 tokens at most.",
        "Version 2.1 of 10 rules",
    ],
)
def test_plain_instructions_are_left_alone(text: str) -> None:
    assert lint([chat(ASK, rules=text)]) == []


def test_a_time_in_a_question_is_no_concern() -> None:
    assert lint([chat(said("user", "Is 2026-11-29 18:04:05 a Sunday?"))]) == []


def test_a_suspect_that_is_repeated_is_reported_once() -> None:
    assert [
        finding.request for finding in lint([chat(*turn, rules="On 2026-11-29.") for turn in (TURN_1, TURN_2)])
    ] == [0]


def test_tools_are_looked_at_as_well() -> None:
    finding = only([chat(ASK, tools=[tool("a", "as of 2026-11-29")])])
    assert (finding.message, finding.kind) == (None, "date")


def test_tools_in_an_order_by_chance_are_found() -> None:
    assert only([chat(ASK, tools=[tool("b"), tool("a")])]).kind == "unsorted_tools"


@given(st.integers(1, 5), st.booleans())
def test_appending_is_never_reported(turns: int, pictures: bool) -> None:
    messages: list[Json] = []
    requests = []
    for turn in range(turns):
        messages = [*messages, said("user", f"question {turn}", *(["a.png"] if pictures else []))]
        requests.append(chat(*messages, tools=[tool("a"), tool("b")]))
        messages = [*messages, said("assistant", f"answer {turn}")]
    assert lint(requests) == []


REWRITTEN: list[tuple[str, int, tuple[Json, ...]]] = [
    ("image_removed", 1, (said("user", "What is it?"), *LATER[1:])),
    ("image_replaced", 1, (said("user", "What is it?", "b.png"), *LATER[1:])),
    ("image_added", 3, (*LATER[:2], said("user", "Of which colour?", "b.png"), *LATER[3:])),
    ("text_changed", 2, (ASK, said("assistant", "A sun."), *LATER[2:])),
    ("whitespace", 2, (ASK, said("assistant", "A  star. "), *LATER[2:])),
    ("message_inserted", 2, (ASK, said("assistant", "Well."), *LATER[1:])),
    ("message_removed", 1, LATER[2:]),
]


@pytest.mark.parametrize(("kind", "message", "after"), REWRITTEN)
def test_rewritten_history_is_named_with_its_place(kind: str, message: int, after: tuple[Json, ...]) -> None:
    finding = only([chat(*TURN_2), chat(*after)])
    assert (finding.request, finding.message, finding.kind) == (1, message, kind)
    assert finding.lost_characters > 0


def test_the_loss_is_what_stood_behind_the_difference() -> None:
    finding = only([chat(*TURN_2), chat(said("user", "What is it?"), *LATER[1:])])
    assert finding.lost_characters == len("What is it?" + "A star." + "Of which colour?") and finding.lost_images == 1


def test_only_the_first_difference_carries_the_loss() -> None:
    edited = (said("user", "What is it?"), REPLY, said("user", "Of what colour?"), said("assistant", "Red."), NEXT)
    findings = lint([chat(*TURN_2), chat(*edited)])
    assert [finding.lost_characters > 0 for finding in findings] == [True, False]


def test_changed_instructions_cost_everything() -> None:
    finding = only([chat(*TURN_1), chat(*TURN_2, rules="Be long.")])
    assert (finding.kind, finding.message, finding.lost_images) == ("system_changed", 0, 1)


def test_another_order_of_equal_tools_is_told_from_other_tools() -> None:
    tools = [tool("a"), tool("b")]
    swapped = lint([chat(*TURN_1, tools=tools), chat(*TURN_2, tools=tools[::-1])])
    assert {finding.kind for finding in swapped} == {"unsorted_tools"} and max(f.lost_images for f in swapped) == 1
    assert only([chat(*TURN_1, tools=tools), chat(*TURN_2, tools=tools[:1])]).kind == "tools_changed"


def test_json_in_another_spelling_is_named() -> None:
    before, after = (said("tool", text) for text in ('{"a": 1, "b": 2}', '{"b":2,"a":1}'))
    finding = only([chat(ASK, before), chat(ASK, after, REPLY, NEXT)])
    assert (finding.kind, finding.message) == ("unstable_json", 2)


def test_equal_pixels_in_another_file_are_told_from_another_picture() -> None:
    png, bmp, blue = data_url("red"), data_url("red", "BMP"), data_url("blue")
    requests = [chat(said("user", "What?", png)), chat(said("user", "What?", bmp), REPLY, NEXT)]
    names = identities([png, bmp, blue])
    assert names[png] == names[bmp] != names[blue]
    assert [finding.kind for finding in lint(requests, names)] == ["image_reencoded"]


def test_a_broken_picture_has_no_identity() -> None:
    assert identities(["data:image/png;base64,AAAA", "data:image/png;base64,BBBB", "https://a/b.png"]) == {}


def test_a_new_conversation_shares_only_its_opening() -> None:
    other = said("user", "Who are you?")
    assert lint([chat(*TURN_2), chat(other)]) == []
    assert only([chat(*TURN_2), chat(other, rules="Be long.")]).kind == "system_changed"


def test_sessions_are_compared_apart() -> None:
    first, second = chat(*TURN_1, session_id="a"), chat(said("user", "What is it?", "b.png"), session_id="b")
    assert lint([first, second, chat(*TURN_2, session_id="a")]) == []


def test_losses_are_counted_in_tokens_where_a_counter_is_given() -> None:
    requests = [chat(*TURN_2), chat(ASK, said("assistant", "A sun."), *LATER[2:])]
    (counted,) = count_tokens(requests, lint(requests), lambda messages: 10 * len(messages))
    assert counted.lost_tokens == 20
    (unknown,) = count_tokens(requests, lint(requests), lambda messages: None)
    assert unknown.lost_tokens is None


@pytest.mark.parametrize("text", ['{"messages": []}', '[{"messages": []}]', '{"messages": []}\n\n'])
def test_requests_come_alone_in_a_list_or_by_line(text: str) -> None:
    assert read_requests(text) == [{"messages": []}]


def test_the_line_at_fault_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="line 2"):
        read_requests('{"messages": []}\n{oops')


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"messages": [{"content": "x"}]},
        3,
        {"messages": [], "tools": 5},
        {"messages": [{"role": "user", "content": 5}]},
    ],
)
def test_what_is_no_request_is_refused(request_: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        lint([request_])
