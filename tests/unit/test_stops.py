"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.answers.answer import AnswerText
from services.router.answers.stops import StopMatcher, check_stops
from triptych.errors import InvalidArgumentError

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def feed(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = "".join(matcher.push(piece) for piece in pieces)
    return text + matcher.flush(), matcher.matched


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By the definition: read character by character, the longest stop string that is complete first."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(pieces=st.lists(LETTERS, max_size=6), stops=STOPS)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]) -> None:
    assert feed(pieces, stops) == expected("".join(pieces), stops)


@given(text=LETTERS, stops=STOPS)
def test_text_is_released_as_soon_as_it_is_certain(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = "".join(matcher.push(char) for char in text)
    if matcher.matched is None:
        held = text[len(released) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["alpha beta", " gam", "ma delta"], "beta gamma", "alpha "),
        (["gr", "ammar"], "amm", "gr"),
        (["a", "\n", "b"], "\n<end>", "a\nb"),
        (["a\n<e", "nd>"], "\n<end>", "a"),
    ],
)
def test_examples(pieces: list[str], stop: str, text: str) -> None:
    assert feed(pieces, [stop])[0] == text


def test_nothing_comes_after_the_match() -> None:
    matcher = StopMatcher(["x"])
    assert (matcher.push("axb"), matcher.push("more"), matcher.flush()) == ("a", "", "")


def test_an_answer_counts_tokens_up_to_the_match() -> None:
    answer = AnswerText(lambda ids: "".join(map(chr, ids)), ["bc"])
    assert (answer.push([ord(char) for char in "abcd"]), answer.matched_stop) == (("a", 3), "bc")


def test_a_held_back_start_is_released_at_the_end() -> None:
    answer = AnswerText(lambda ids: "".join(map(chr, ids)), ["bc"])
    assert (answer.push([ord("a"), ord("b")]), answer.finish()) == (("a", 2), "b")


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["x"] * 17])
def test_bad_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidArgumentError):
        check_stops(stops)
