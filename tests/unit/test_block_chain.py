"""Block hashes: equal exactly when everything up to the block's end is equal, pictures and their parts included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.identity.blocks import BlockChain, KeyedSpan, block_root

ROOT = block_root("model", ("float32", 2), "scope")
A, B = "aa" * 32, "ab" * 32
PAD = 9


def chain(tokens: list[int], *images: KeyedSpan, root: bytes = ROOT) -> list[bytes]:
    built = BlockChain(root, 4, images)
    built.extend(tokens)
    return built.hashes


def with_image(offset: int, length: int, key: str, total: int = 16) -> list[bytes]:
    tokens = [PAD if offset <= index < offset + length else 1 for index in range(total)]
    return chain(tokens, KeyedSpan(offset, length, key))


def test_only_full_blocks_are_hashed() -> None:
    assert [len(chain([1] * length)) for length in (3, 4, 7, 8)] == [0, 1, 1, 2]


def test_another_picture_changes_every_block_from_its_first_on() -> None:
    one, other = with_image(5, 6, A), with_image(5, 6, B)
    assert one[0] == other[0]
    assert all(mine != theirs for mine, theirs in zip(one[1:], other[1:], strict=True))


@pytest.mark.parametrize("digit", range(64))
def test_every_digit_of_the_key_counts(digit: int) -> None:
    changed = A[:digit] + "0" + A[digit + 1 :]
    assert with_image(4, 4, A)[1] != with_image(4, 4, changed)[1]


def test_the_part_of_the_picture_counts() -> None:
    """Both blocks hold four rows of the same picture after the same tokens, but not the same rows."""
    early = chain([PAD] * 8, KeyedSpan(0, 8, A))
    late = chain([PAD] * 8, KeyedSpan(0, 4, A), KeyedSpan(4, 4, A))
    assert early[0] == late[0]
    assert early[1] != late[1]


def test_where_two_pictures_meet_counts() -> None:
    early = chain([PAD] * 4, KeyedSpan(0, 1, A), KeyedSpan(1, 3, A))
    late = chain([PAD] * 4, KeyedSpan(0, 3, A), KeyedSpan(3, 1, A))
    assert early != late


def test_same_picture_after_other_text_is_another_block() -> None:
    one = chain([1, 1, 1, 1, PAD, PAD, PAD, PAD], KeyedSpan(4, 4, A))
    other = chain([1, 1, 1, 2, PAD, PAD, PAD, PAD], KeyedSpan(4, 4, A))
    assert one[1] != other[1]


def test_roots_of_other_models_layouts_and_scopes_differ() -> None:
    roots = [
        block_root("model", ("float32", 2), "scope"),
        block_root("model2", ("float32", 2), "scope"),
        block_root("model", ("bfloat16", 2), "scope"),
        block_root("model", ("float32", 2), "scope2"),
        block_root("model", ("float32", "2scope"), ""),
    ]
    assert len({chain([1] * 4, root=root)[0] for root in roots}) == len(roots)


@given(tokens=st.lists(st.integers(0, 2**32 - 1), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_a_chain_may_grow_in_pieces(tokens: list[int], cuts: list[int]) -> None:
    grown = BlockChain(ROOT, 4, [KeyedSpan(2, 11, A)])
    for end in [*sorted(cuts), len(tokens)]:
        grown.extend(tokens[grown.num_tokens : end])
    assert grown.hashes == chain(tokens, KeyedSpan(2, 11, A))
