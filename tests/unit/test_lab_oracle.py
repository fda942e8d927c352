"""The oracle against the real block hashes, and the edits of the experiment's groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.identity.blocks import BlockChain, KeyedSpan
from triptych.digests import file_digest
from triptych.lab.groups import GROUPS, Pair, Setup
from triptych.lab.material import Material, load_material
from triptych.lab.oracle import Oracle, Picture, Prompt
from triptych.lab.talks import Talk, places
from triptych.messages import Image

BLOCK = 4
KEYS = [file_digest(name) for name in (b"a", b"b")]
PLACEHOLDER = 99


@pytest.fixture(scope="module")
def material() -> Material:
    return load_material()


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Few distinct tokens and two pictures, so that beginnings are often shared."""
    tokens: list[int] = []
    pictures: list[Picture] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            pictures.append(Picture(len(tokens), 3, draw(st.sampled_from(KEYS))))
            tokens += [PLACEHOLDER] * 3
        else:
            tokens += draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    return Prompt(tuple(tokens), tuple(pictures))


def hashes(prompt: Prompt, answer: list[int]) -> list[bytes]:
    spans = [KeyedSpan(picture.offset, picture.length, picture.identity) for picture in prompt.pictures]
    chain = BlockChain(b"root", BLOCK, spans)
    chain.extend([*prompt.token_ids, *answer])
    return chain.hashes


@given(st.lists(st.tuples(prompts(), st.lists(st.integers(0, 1), max_size=6)), min_size=1, max_size=6))
def test_it_agrees_with_a_prefix_cache_of_block_hashes(calls: list[tuple[Prompt, list[int]]]) -> None:
    oracle, cached = Oracle(BLOCK), set[bytes]()
    for prompt, answer in calls:
        usable = hashes(prompt, [])[: (len(prompt.token_ids) - 1) // BLOCK]
        found = next((index for index, each in enumerate(usable) if each not in cached), len(usable))
        assert oracle.reads(prompt) == found * BLOCK
        oracle.computed(prompt, answer)
        cached.update(hashes(prompt, answer[:-1]))


def test_lost_answers_leave_the_prompts() -> None:
    oracle, prompt = Oracle(BLOCK), Prompt(tuple(range(8)))
    oracle.computed(prompt, [20, 21, 22, 23, 24])
    longer = Prompt((*range(8), 20, 21, 22, 23, 30))
    assert oracle.reads(longer) == 12
    oracle.lose_answers()
    assert oracle.reads(longer) == 8


def symbols(talk: Talk) -> list[str]:
    """Roughly what the model reads: a word for every part and message."""
    return [
        word
        for message in talk
        for word in (message.role, *(part.digest if isinstance(part, Image) else part for part in message.content))
    ]


def shared(pair: Pair) -> float:
    first, second = symbols(pair.first), symbols(pair.second("an answer"))
    same = next((index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    return same / len(first)


@pytest.mark.parametrize("pictures", [True, False])
@pytest.mark.parametrize("group", [group for group in GROUPS if group.name in "ABC"], ids=lambda group: group.name)
def test_appending_keeps_the_whole_first_request(group: object, pictures: bool, material: Material) -> None:
    build = group.build  # type: ignore[attr-defined]
    assert shared(build(Setup(material, 3, pictures))) == 1.0


def test_every_other_edit_cuts_where_its_title_says(material: Material) -> None:
    cuts = {group.name: shared(group.build(Setup(material, 4, True))) for group in GROUPS}
    # The opening and the role of the first turn with a picture come before that picture.
    before = len(symbols(tuple(material.begin()))) + 1
    assert cuts["D"] == cuts["F"] == cuts["G"] == pytest.approx(before / len(symbols(Setup(material, 4, True).talk)))
    assert cuts["D"] < cuts["E"] < 1.0


def test_another_encoding_changes_the_file_and_nothing_else(material: Material) -> None:
    pair = next(group for group in GROUPS if group.name == "F").build(Setup(material, 2, True))
    second = pair.second("")
    assert places(pair.first) == places(second)
    changed = [index for index, (a, b) in enumerate(zip(pair.first, second, strict=True)) if a != b]
    assert changed == [len(material.begin())]


def test_references_leave_one_picture_at_the_end(material: Material) -> None:
    pair = next(group for group in GROUPS if group.name == "H").build(Setup(material, 3, True))
    assert places(pair.first) == [] and places(pair.second("yes")) == [(len(pair.first) + 1, 0)]
