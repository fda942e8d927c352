"""Deltas of text: whole characters that join to the whole text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.answers.detokenizer import Detokenizer
from services.router.answers.token_bytes import token_bytes, token_text
from services.router.prompts.specials import Piece
from services.router.prompts.tokenizer import Tokenizer
from tests.unit.router_tokenizers import demo_tokenizer, sentencepiece_tokenizer

TOKENIZERS = [demo_tokenizer, sentencepiece_tokenizer]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([Piece(text, literal=True)])


def deltas(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer.decode)
    return [*(detokenizer.push([token]) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("build", TOKENIZERS)
@given(text=TEXT)
def test_deltas_join_to_the_text(build: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = build()
    ids = encode(tokenizer, text)
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 1023), max_size=20))
def test_deltas_of_any_tokens_join_to_what_decode_says(ids: list[int]) -> None:
    tokenizer = demo_tokenizer()
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)


@given(text=TEXT.filter(lambda text: "\ufffd" not in text))
def test_no_delta_holds_part_of_a_character(text: str) -> None:
    tokenizer = demo_tokenizer()
    assert not any("\ufffd" in delta for delta in deltas(tokenizer, encode(tokenizer, text)))


@pytest.mark.parametrize("text", ["é", "€", "𝄞", "a€𝄞b"])
def test_a_character_appears_with_its_last_token(text: str) -> None:
    tokenizer = demo_tokenizer()
    ids = encode(tokenizer, text)
    assert len(ids) > len(text)
    assert [delta for delta in deltas(tokenizer, ids) if delta] == list(text)


def test_several_tokens_at_once_give_the_same_text() -> None:
    tokenizer = demo_tokenizer()
    detokenizer = Detokenizer(tokenizer.decode)
    ids = encode(tokenizer, "two words €")
    assert detokenizer.push(ids[:3]) + detokenizer.push(ids[3:]) + detokenizer.flush() == "two words €"


def test_special_tokens_show_nothing() -> None:
    tokenizer = demo_tokenizer()
    assert "".join(deltas(tokenizer, [1012, *encode(tokenizer, "hi"), 1012])) == "hi"


def test_a_space_after_a_special_token_is_kept() -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = encode(tokenizer, "hello")
    end = next(token for token in range(400) if tokenizer.piece(token) == "</s>")
    assert "".join(deltas(tokenizer, [*ids, end, *ids])) == tokenizer.decode([*ids, end, *ids]) == "hello hello"


def test_an_answer_cut_inside_a_character_ends_as_decode_says() -> None:
    tokenizer = demo_tokenizer()
    ids = encode(tokenizer, "a€")[:-1]
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("build", TOKENIZERS)
@given(text=TEXT)
def test_bytes_of_tokens_join_to_the_text(build: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = build()
    joined = b"".join(token_bytes(tokenizer, token) for token in encode(tokenizer, text)).decode()
    # SentencePiece puts a space of its own in front.
    assert joined in (text, f" {text}")


def test_a_special_token_has_a_name_but_no_bytes() -> None:
    tokenizer = demo_tokenizer()
    assert (token_text(tokenizer, 1012), token_bytes(tokenizer, 1012)) == ("<|im_end|>", b"")
