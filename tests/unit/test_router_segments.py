"""Chats tokenized piece by piece: the same ids, and nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from services.router.prompts.segments import Segments, separable
from tests.unit.router_tokenizers import DEMO, sentencepiece_tokenizer

BACKEND = Backend.from_file(str(DEMO / "tokenizer.json"))
ADDED = {token.content: index for index, token in BACKEND.get_added_tokens_decoder().items()}
TEXTS = st.lists(st.sampled_from([*ADDED, "hello", " hello", "  \n", "it's 42", "<|im_", "end|>"]) | st.text())


class Counting:
    """The demo's tokenizer, and what it was asked."""

    def __init__(self, max_bytes: int = 10**6) -> None:
        self.asked: list[str] = []
        self.segments = Segments(self._encode, ADDED, max_bytes)

    def _encode(self, text: str) -> list[int]:
        self.asked.append(text)
        return list(BACKEND.encode(text, add_special_tokens=False).ids)


@given(TEXTS)
def test_the_ids_are_those_of_the_whole(texts: list[str]) -> None:
    segments, chat = Counting().segments, "".join(texts)
    whole = BACKEND.encode(chat, add_special_tokens=False).ids
    assert segments.encode(chat, "") == whole
    assert segments.encode(chat, "") == whole


def test_a_text_is_tokenized_once_in_a_scope() -> None:
    counting = Counting()
    counting.segments.encode("hello<|im_end|>you", "a")
    counting.segments.encode("hello<|im_end|>you<|im_end|>too", "a")
    assert counting.asked == ["hello", "you", "too"]
    counting.segments.encode("hello", "b")
    assert counting.asked[3:] == ["hello"]


def test_the_least_recently_used_is_forgotten() -> None:
    counting = Counting(max_bytes=600)
    for text in ("one", "two", "one", "three", "one", "two"):
        counting.segments.encode(text, "")
    assert counting.asked == ["one", "two", "three", "two"]


def test_only_tokenizers_that_look_at_no_neighbours_are_separable() -> None:
    assert separable(BACKEND)
    assert not separable(sentencepiece_tokenizer()._backend)


@pytest.mark.parametrize("way", ["lstrip", "rstrip", "single_word", "normalized"])
def test_added_tokens_that_look_at_their_neighbours_are_not_separable(way: str) -> None:
    backend = Backend.from_file(str(DEMO / "tokenizer.json"))
    backend.add_tokens([AddedToken("<odd>", **{"normalized": False, way: True})])
    assert not separable(backend)
