"""The demo model's scenes and questions: repeatable, and right by construction."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from models.training.dialogues import random_dialogue
from models.training.held_out import held_out
from models.training.questions import (
    ask_colour,
    ask_corner,
    ask_count,
    ask_describe,
    ask_exists,
    ask_shape,
    ask_side,
    ask_which,
    ask_word,
)
from models.training.scenes import CELL, COLOURS, GRIDS, Scene, Thing, draw, random_scene

CIRCLE = Thing("shape", "circle", "red", row=0, col=0)
STAR = Thing("shape", "star", "blue", row=3, col=5)
SCENE = Scene(4, 6, (CIRCLE, STAR))


@pytest.fixture
def rng() -> random.Random:
    """Chance, the same in every run."""
    return random.Random(7)


def scenes(count: int) -> Iterator[Scene]:
    """Random scenes to try a rule on."""
    rng = random.Random("scenes")
    return (random_scene(rng) for _ in range(count))


def test_equal_seeds_give_equal_questions_and_pictures() -> None:
    first, second = list(held_out(12, seed=3)), list(held_out(12, seed=3))
    assert [item.messages for item in first] == [item.messages for item in second]
    assert [[image.tobytes() for image in item.images] for item in first] == [
        [image.tobytes() for image in item.images] for item in second
    ]


def test_other_seeds_give_other_questions() -> None:
    assert [item.messages for item in held_out(12, seed=3)] != [item.messages for item in held_out(12, seed=4)]


def test_items_end_with_the_question_and_carry_one_picture_per_placeholder() -> None:
    for item in held_out(60):
        parts = [part for message in item.messages for part in message["content"] if isinstance(part, dict)]
        assert item.messages[-1]["role"] == "user"
        assert sum(part["type"] == "image" for part in parts) == len(item.images) > 0
        assert item.answer == item.answer.strip() != ""


@pytest.mark.parametrize("grid", GRIDS)
def test_a_picture_is_as_large_as_its_grid(grid: tuple[int, int], rng: random.Random) -> None:
    picture = draw(random_scene(rng, grid=grid))
    assert (picture.mode, picture.size) == ("RGB", (grid[1] * CELL, grid[0] * CELL))


def test_no_two_things_share_a_cell() -> None:
    for scene in scenes(200):
        cells = [(thing.row, thing.col + step) for thing in scene.things for step in range(thing.width)]
        assert len(cells) == len(set(cells))
        assert all(row < scene.rows and col < scene.cols for row, col in cells)


def test_a_shape_is_drawn_in_its_colour_at_its_centre() -> None:
    for scene in scenes(50):
        picture = draw(scene)
        for thing in scene.shapes:
            x, y = thing.centre
            assert picture.getpixel((int(x), int(y))) == COLOURS[thing.colour]


def test_colour_and_shape_name_the_only_candidate(rng: random.Random) -> None:
    for asker, answers in (
        (ask_colour, {"circle": "red", "star": "blue"}),
        (ask_shape, {"red": "circle", "blue": "star"}),
    ):
        question = asker(SCENE, rng)
        assert question
        assert question.answer == next(answer for word, answer in answers.items() if word in question.text)


def test_an_ambiguous_scene_is_not_asked_about(rng: random.Random) -> None:
    twins = Scene(4, 6, (CIRCLE, Thing("shape", "circle", "red", row=2, col=2)))
    assert ask_colour(twins, rng) is ask_shape(twins, rng) is ask_corner(twins, rng) is None


def test_existence_is_answered_truly(rng: random.Random) -> None:
    for _ in range(40):
        question = ask_exists(SCENE, rng)
        present = "red circle" in question.text or "blue star" in question.text
        assert question.answer == ("yes" if present else "no")


def test_counts_are_of_what_is_named(rng: random.Random) -> None:
    scene = Scene(
        4, 6, (CIRCLE, STAR, Thing("shape", "star", "red", row=1, col=1), Thing("word", "cat", "black", 2, 2))
    )
    expected = {"stars": "2", "circles": "1", "red shapes": "2", "blue shapes": "1", "shapes": "3"}
    for _ in range(40):
        question = ask_count(scene, rng)
        assert question
        assert question.answer == next(count for name, count in expected.items() if name in question.text)


def test_positions(rng: random.Random) -> None:
    assert (SCENE.corner(CIRCLE), SCENE.corner(STAR)) == ("top left", "bottom right")
    assert Scene(3, 3, ()).corner(Thing("shape", "circle", "red", row=1, col=0)) is None
    side = ask_side(SCENE, rng)
    assert side and side.answer in ("left", "right", "top", "bottom")


def test_a_description_names_every_shape_in_reading_order(rng: random.Random) -> None:
    question = ask_describe(SCENE, rng)
    assert question and question.answer == "red circle top left, blue star bottom right"
    assert ask_describe(Scene(4, 6, (CIRCLE, CIRCLE)), rng) is None


def test_the_word_is_read(rng: random.Random) -> None:
    question = ask_word(Scene(4, 6, (CIRCLE, Thing("word", "milk", "black", 2, 2))), rng)
    assert question and question.answer == "milk"


def test_which_picture_has_one_right_answer(rng: random.Random) -> None:
    question = ask_which((Scene(4, 6, (CIRCLE,)), Scene(4, 6, (CIRCLE, STAR))), rng)
    assert question and (question.text, question.answer) == ("Which picture has a blue star?", "second")
    assert ask_which((SCENE, SCENE), rng) is None


def test_a_transcript_alternates_and_ends_with_an_answer(rng: random.Random) -> None:
    for _ in range(30):
        roles = [
            message["role"] for message in random_dialogue(rng, turns=3).transcript() if message["role"] != "system"
        ]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
