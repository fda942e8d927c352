"""What policies send, as functions of the log: which part of the last prompt survives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych import Image, Message, assistant, system, user
from triptych.conversation import (
    AppendOnly,
    Description,
    ImageReferences,
    ImageWindow,
    Log,
    Policy,
    RollOver,
    Summary,
    first_change,
)
from triptych.conversation.log import pictures_in
from triptych.errors import InvalidArgumentError
from triptych.messages import ToolCall

PICTURES = [Image.from_bytes(bytes([number])) for number in range(6)]
A, B, C = PICTURES[:3]
Turns = list[tuple[str | Image, ...]]

turns = st.lists(
    st.lists(st.one_of(st.sampled_from(PICTURES), st.text("ab ", max_size=12)), min_size=1, max_size=3).map(tuple),
    min_size=2,
    max_size=10,
)


def prompts(policy: Policy, turns: Turns, opening: Log | None = None) -> list[tuple[tuple[Message, ...], Log]]:
    """What is sent turn by turn, and the log at that moment; needs are answered with a text of their own."""
    log, sent = opening or Log((system("Be brief."),)), []
    for number, parts in enumerate(turns):
        log = log.with_message(user(*parts))
        while need := policy.need(log):
            log = log.with_fact(replace(need.fact, text=f"text {len(log.facts)}"))
        sent.append((policy.view(log), log))
        log = log.with_message(assistant(f"answer {number}"))
    return sent


def changes(policy: Policy, turns: Turns) -> list[int | None]:
    """For each turn but the first, the message of the last prompt that was not repeated."""
    views = [view for view, _ in prompts(policy, turns)]
    return [first_change(before, after) for before, after in pairwise(views)]


@given(turns)
def test_append_only_repeats_every_message(turns: Turns) -> None:
    assert set(changes(AppendOnly(), turns)) == {None}


@given(turns, st.integers(1, 3))
def test_the_window_is_never_exceeded_and_holds_the_newest(turns: Turns, keep: int) -> None:
    for view, log in prompts(ImageWindow(keep), turns):
        assert pictures_in(view) == pictures_in(log.messages)[-keep:]


@given(turns, st.integers(1, 3))
def test_the_window_changes_history_where_its_oldest_picture_was(turns: Turns, keep: int) -> None:
    sent = prompts(ImageWindow(keep), turns)
    for (before, old), (after, new) in pairwise(sent):
        gone = len(pictures_in(new.messages)) - keep
        slid = gone > max(0, len(pictures_in(old.messages)) - keep)
        oldest = next((index for index, message in enumerate(before) if pictures_in([message])), None)
        changed = first_change(before, after)
        assert changed == (oldest if slid else None)


def test_a_window_with_steps_slides_less_often() -> None:
    turns: Turns = [(picture,) for picture in PICTURES * 2]
    slides = [sum(change is not None for change in changes(ImageWindow(4, step), turns)) for step in (1, 4)]
    assert slides == [8, 2]


def test_a_window_says_what_its_slide_costs() -> None:
    policy = ImageWindow(1)
    (first, _), (second, _) = prompts(policy, [("see", A), (B,)])
    assert policy.caution((), first) is None
    assert "from index 1" in (policy.caution(first, second) or "")


@given(turns, st.integers(1, 4), st.integers(0, 2))
def test_roll_over_changes_the_prefix_only_at_a_roll_over(turns: Turns, most: int, keep: int) -> None:
    sent = prompts(RollOver(max_images=most, keep_turns=keep), turns)
    for (before, old), (after, new) in pairwise(sent):
        assert first_change(before, after) is None or len(new.summaries) > len(old.summaries)


@given(turns, st.integers(1, 4))
def test_after_a_roll_over_the_limits_hold_unless_one_turn_alone_breaks_them(turns: Turns, most: int) -> None:
    for view, log in prompts(RollOver(max_images=most), turns):
        assert len(pictures_in(view)) <= max(most, len(pictures_in(log.messages[-1:])))


@given(turns)
def test_every_summary_is_of_another_version_and_asked_for_at_the_end_of_the_old_prompt(turns: Turns) -> None:
    policy, log = RollOver(max_images=1), Log((system("Be brief."),))
    for parts in turns:
        before, log = log, log.with_message(user(*parts))
        if need := policy.need(log):
            assert first_change(policy.view(before), need.messages) is None
            log = log.with_fact(replace(need.fact, text="it"))
            opened = policy.view(log)[1].content[0]
            assert isinstance(opened, str) and opened.startswith(f"[Summary {len(log.summaries)} ")
        log = log.with_message(assistant("yes"))


def test_a_summary_keeps_the_system_message_and_the_turn_at_the_boundary() -> None:
    log = Log((system("Be brief."), user(A, "what?"), assistant("a star"), user("and now?")), (Summary(3, "A star."),))
    first, block = RollOver().view(log)
    assert first == system("Be brief.")
    assert block.content[0] == "[Summary 1 of the conversation before this point]\nA star.\n[End of summary 1]\n"
    assert block.content[1:] == ("and now?",)


def test_long_texts_roll_over_as_well() -> None:
    sent = prompts(RollOver(max_characters=50), [("x" * 30,)] * 3)
    assert [len(log.summaries) for _, log in sent] == [0, 1, 2]


@given(turns)
def test_references_repeat_everything_before_the_last_turn(turns: Turns) -> None:
    sent = [view for view, _ in prompts(ImageReferences(), turns)]
    for before, after in pairwise(sent):
        assert first_change(before[:-1], after) is None


@given(turns)
def test_references_send_only_pictures_of_the_last_turn(turns: Turns) -> None:
    for view, log in prompts(ImageReferences(), turns):
        assert pictures_in(view[:-1]) == []
        assert pictures_in(view) == pictures_in(log.messages[-1:])


@given(turns)
def test_each_picture_is_described_once(turns: Turns) -> None:
    _, log = prompts(ImageReferences(), turns)[-1]
    described = [fact.digest for fact in log.facts if isinstance(fact, Description)]
    assert sorted(described) == sorted({image.digest for image in pictures_in(log.messages)})


def test_a_reference_names_number_digest_and_description() -> None:
    log = Log((user(A, B, "which?"), assistant("B"), user("why?")), (Description(B.digest, "a red star"),))
    assert ImageReferences().view(log)[0].content == (
        f"[image 1, {A.digest[:12]}]",
        f"[image 2, {B.digest[:12]}: a red star]",
        "which?",
    )


@pytest.mark.parametrize(
    ("text", "recalled"),
    [
        ("and in image 1?", [A]),
        ("compare images 1 and 2", [A, B]),
        ("Image 7?", []),
        ("what else?", []),
        ("image " + "1" * 5000, []),
    ],
    ids=["one", "two", "unknown", "none", "endless"],
)
def test_a_mentioned_picture_comes_back_at_the_end(text: str, recalled: list[Image]) -> None:
    log = Log((user(A, "what?"), assistant("a star"), user(B, "and this?"), assistant("a moon"), user(text)))
    last = ImageReferences(describe=False).view(log)[-1]
    assert last.content[0] == text and pictures_in([last]) == recalled


def test_pictures_of_function_results_are_shown_until_the_next_question() -> None:
    found = Message("tool", (A,), tool_call_id="1")
    log = Log((user("look"), Message("assistant", (), (ToolCall("1", "shoot", "{}"),)), found))
    policy = ImageReferences(describe=False)
    assert pictures_in(policy.view(log)) == [A]
    later = policy.view(log.with_message(assistant("a star")).with_message(user("which?")))
    assert pictures_in(later) == [] and later[1].tool_calls and later[2].tool_call_id == "1"


@pytest.mark.parametrize("make", [lambda: ImageWindow(0), lambda: ImageWindow(2, 3), lambda: RollOver(max_images=0)])
def test_senseless_limits_are_refused(make: object) -> None:
    with pytest.raises(InvalidArgumentError):
        make()  # type: ignore[operator]
