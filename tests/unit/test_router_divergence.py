"""Where and why a prompt stops being the continuation of the one before it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.identity.blocks import KeyedSpan
from services.router.history.divergence import common_prefix, first_divergence
from services.router.history.turns import Part, Said, Turn, Turns, beginnings_of
from triptych.digests import file_digest
from triptych.v1.types_pb2 import DivergenceKind

BLOCK = 16
MARKER = 7
PICTURE_TOKENS = 20
KIND = DivergenceKind.Value
LOOKS = {"A": "f" * 16 + "102030", "A2": "f" * 16 + "102031", "B": "0" * 16 + "a0a0a0"}
Talk = Sequence[tuple[str, str]]


def said(role: str, content: str) -> Said:
    """`content` is words; those in capitals are pictures, `A@x` is picture A in file x."""
    parts = []
    for word in content.split():
        name, _, file = word.partition("@")
        picture = Part(image_id=name, file=file or name, look=LOOKS.get(name, ""))
        parts.append(picture if name.isupper() or name[:1].isupper() else Part(text=word))
    return Said(role, tuple(parts))


def turn(talk: Talk, answer: str = "", number: int = 1, tools: str = "", name: str = "r1") -> Turn:
    """A prompt with two tokens a message, one a text, and PICTURE_TOKENS placeholders a picture."""
    messages = tuple(said(*each) for each in talk)
    ids, spans = _tokens(messages)
    ids += [1, *_word("assistant")]
    return Turn(name, number, array("I", ids + _words(answer)), len(ids), tuple(spans), messages, tools)


def _tokens(messages: Sequence[Said]) -> tuple[list[int], list[KeyedSpan]]:
    ids: list[int] = []
    spans: list[KeyedSpan] = []
    for message in messages:
        ids += [1, *_word(message.role)]
        for part in message.parts:
            if part.image_id:
                spans.append(KeyedSpan(len(ids), PICTURE_TOKENS, file_digest(part.image_id.encode())))
            ids += [MARKER] * PICTURE_TOKENS if part.image_id else _word(part.text)
        ids.append(2)
    return ids, spans


def _word(text: str) -> list[int]:
    return [100 + sum(ord(char) * 31**index for index, char in enumerate(text)) % 2**20]


def _words(text: str) -> list[int]:
    return [token for word in text.split() for token in _word(word)] + ([2] if text else [])


BEFORE: Talk = [("user", "look A"), ("assistant", "red"), ("user", "and B")]
MORE: Talk = [("assistant", "blue"), ("user", "thanks")]

CASES: list[tuple[str, Talk, int, str]] = [
    ("identical", BEFORE, 2, "NONE"),
    ("appended", [*BEFORE, *MORE], 4, "NONE"),
    ("picture appended", [*BEFORE, ("assistant", "blue"), ("user", "this C")], 4, "NONE"),
    ("text", [("user", "see A"), *BEFORE[1:], *MORE], 0, "TEXT_EDITED"),
    ("oldest picture removed", [("user", "look"), *BEFORE[1:], *MORE], 0, "IMAGE_REMOVED"),
    ("newest picture removed", [*BEFORE[:2], ("user", "and"), *MORE], 2, "IMAGE_REMOVED"),
    ("picture made a note", [("user", "look omitted"), *BEFORE[1:], *MORE], 0, "IMAGE_REMOVED"),
    ("oldest turn dropped", [BEFORE[2], *MORE], 0, "IMAGE_REMOVED"),
    ("words put in front", [("user", "hi"), ("assistant", "hello"), *BEFORE, *MORE], 0, "TEXT_EDITED"),
    ("replaced by a later picture", [("user", "look B"), *BEFORE[1:], *MORE], 0, "IMAGE_REPLACED"),
    ("words in front, and a new picture", [("user", "hi"), *BEFORE, ("user", "C")], 0, "TEXT_EDITED"),
    ("picture added", [("user", "look A C"), *BEFORE[1:], *MORE], 0, "IMAGE_ADDED"),
    ("picture replaced", [("user", "look C"), *BEFORE[1:], *MORE], 0, "IMAGE_REPLACED"),
    ("pictures swapped", [("user", "look B"), BEFORE[1], ("user", "and A"), *MORE], 0, "ORDER_CHANGED"),
    ("parts swapped", [("user", "A look"), *BEFORE[1:], *MORE], 0, "ORDER_CHANGED"),
    ("lossy copy", [("user", "look A2"), *BEFORE[1:], *MORE], 0, "IMAGE_REENCODED"),
    ("another file", [("user", "look A@png"), *BEFORE[1:], *MORE], 0, "IMAGE_REENCODED"),
    ("answer", [*BEFORE, ("assistant", "blueish"), ("user", "thanks")], 3, "ANSWER_CHANGED"),
    ("role", [("system", "look A"), *BEFORE[1:], *MORE], 0, "TEXT_EDITED"),
]


@pytest.mark.parametrize(("talk", "message", "kind"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_kind_and_message(talk: Talk, message: int, kind: str) -> None:
    found = first_divergence(turn(BEFORE, "blue"), turn(talk, number=2), 10_000, BLOCK)
    assert (DivergenceKind.Name(found.kind), found.message_index) == (f"DIVERGENCE_KIND_{kind}", message)


def test_every_kind_has_a_case() -> None:
    below = {"TEMPLATE_CHANGED", "EVICTED"}
    names = {name.removeprefix("DIVERGENCE_KIND_") for name, _ in DivergenceKind.items()}
    assert {case[-1] for case in CASES} | below == names - {"UNSPECIFIED"}


def test_position_and_loss_of_a_removed_picture() -> None:
    before = turn(BEFORE, "blue")
    found = first_divergence(before, turn([("user", "look"), *BEFORE[1:], *MORE], number=2), 0, BLOCK)
    # Role and word stand before the picture.
    assert found.token_position == 3
    assert (
        found.lost_tokens == min(len(before.token_ids), turn([("user", "look"), *BEFORE[1:], *MORE]).prompt_tokens) - 3
    )
    assert found.hint and found.earlier_request_id == "r1" and found.turn == 2


def test_a_replaced_picture_of_the_same_size_is_seen_although_the_tokens_are_equal() -> None:
    found = first_divergence(turn(BEFORE), turn([("user", "look C"), *BEFORE[1:]]), 0, BLOCK)
    assert found.token_position == 3


def test_other_tools_before_the_same_messages() -> None:
    before, now = turn(BEFORE, tools="x"), turn(BEFORE, tools="y")
    moved = Turn(now.request_id, 2, array("I", [9, *now.token_ids]), now.prompt_tokens + 1, (), now.messages, now.tools)
    assert first_divergence(before, moved, 0, BLOCK).kind == KIND("DIVERGENCE_KIND_TEMPLATE_CHANGED")


@pytest.mark.parametrize(("missing", "kind", "lost"), [(0, "NONE", 0), (16, "EVICTED", 16), (32, "EVICTED", 32)])
def test_what_should_have_been_read_and_was_not(missing: int, kind: str, lost: int) -> None:
    now = turn(BEFORE)
    found = first_divergence(turn(BEFORE), now, (now.prompt_tokens - 1) // BLOCK * BLOCK - missing, BLOCK)
    assert (DivergenceKind.Name(found.kind), found.lost_tokens) == (f"DIVERGENCE_KIND_{kind}", lost)


@given(st.lists(st.integers(0, 3), max_size=200), st.lists(st.integers(0, 3), max_size=200), st.integers(0, 200))
def test_common_prefix_is_the_longest(one: list[int], other: list[int], shared: int) -> None:
    both = [0, 1, 2, 3] * (shared // 4)
    before = Turn("a", 1, array("I", both + one), len(both + one), (), (), "")
    now = Turn("b", 2, array("I", both + other), len(both + other), (), (), "")
    found, length = common_prefix(before, now), min(len(both + one), len(both + other))
    assert before.token_ids[:found] == now.token_ids[:found]
    assert found == length or before.token_ids[found] != now.token_ids[found]


def beginnings(scope: str, said_now: Turn) -> list[str]:
    return beginnings_of(scope, said_now.token_ids, said_now.spans)


def test_sessions_are_found_by_name_and_scope() -> None:
    turns = Turns(2**20)
    turns.put("tenant", "chat", turn(BEFORE), ())
    assert turns.previous("tenant", "chat", ()) is not None
    assert turns.previous("other", "chat", ()) is None


def test_without_a_session_the_longest_common_beginning_is_found() -> None:
    turns = Turns(2**20)
    short = [("user", "A a b c d e f g h i j k l m n o p B C D")]
    long = [*short, ("assistant", "yes"), ("user", "E F G H")]
    for name, talk in (("short", short), ("long", long)):
        said_before = turn(talk, name=name)
        turns.put("s", "", said_before, beginnings("s", said_before))
    now = turn([*long, ("assistant", "no"), ("user", "hm")])
    found = turns.previous("s", "", beginnings("s", now))
    assert found is not None and found.request_id == "long"
    assert turns.previous("other scope", "", beginnings("other scope", now)) is None


def test_memory_is_bounded() -> None:
    turns = Turns(20_000)
    for index in range(1000):
        turns.put("s", f"chat {index}", turn(BEFORE), ())
    assert 0 < len(turns) < 10
    assert turns.previous("s", "chat 999", ()) is not None
