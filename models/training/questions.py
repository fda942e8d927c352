"""Questions about scenes, with answers that are right by construction."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from models.training.scenes import COLOURS, SHAPES, Scene, Thing

ORDINALS = ("first", "second", "third", "fourth")
MOST_COUNTED = 4


@dataclass(frozen=True)
class Question:
    """One question and its only right answer."""

    kind: str
    text: str
    answer: str


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _only(things: list[Thing], rng: random.Random, key: Callable[[Thing], object]) -> Thing | None:
    """A random thing whose `key` no other thing shares."""
    counts = Counter(key(thing) for thing in things)
    single = [thing for thing in things if counts[key(thing)] == 1]
    return rng.choice(single) if single else None


def _pair(thing: Thing) -> tuple[str, str]:
    return thing.colour, thing.name


def ask_colour(scene: Scene, rng: random.Random) -> Question | None:
    """The colour of the only shape of its form."""
    thing = _only(scene.shapes, rng, lambda thing: thing.name)
    wording = rng.choice(("What colour is the {}?", "What color is the {}?", "Which colour does the {} have?"))
    return Question("colour", wording.format(thing.name), thing.colour) if thing else None


def ask_shape(scene: Scene, rng: random.Random) -> Question | None:
    """The form of the only shape of its colour."""
    thing = _only(scene.shapes, rng, lambda thing: thing.colour)
    wording = rng.choice(("What shape is {}?", "Which shape is {}?", "What is the {} shape?"))
    return Question("shape", wording.format(thing.colour), thing.name) if thing else None


def ask_exists(scene: Scene, rng: random.Random) -> Question:
    """Whether a colour and a form occur together; half of the questions are answered with yes."""
    present = sorted({_pair(thing) for thing in scene.shapes})
    colours, names = sorted({pair[0] for pair in present}), sorted({pair[1] for pair in present})
    near = [(colour, name) for colour in colours for name in names if (colour, name) not in present]
    absent = [(colour, name) for colour in COLOURS for name in SHAPES if (colour, name) not in present]
    yes = rng.random() < 0.5
    colour, name = rng.choice(present if yes else near if near and rng.random() < 0.5 else absent)
    wording = rng.choice(("Is there {}?", "Do you see {}?", "Does the picture show {}?"))
    return Question("exists", wording.format(_article(f"{colour} {name}")), "yes" if yes else "no")


def ask_count(scene: Scene, rng: random.Random) -> Question | None:
    """How many shapes there are: all of them, of one form, or of one colour; small numbers only."""
    counts = Counter({"shapes": len(scene.shapes)})
    counts.update(_plural(thing.name) for thing in scene.shapes)
    counts.update(f"{thing.colour} shapes" for thing in scene.shapes)
    answers = sorted({count for count in counts.values() if count <= MOST_COUNTED})
    if not answers:
        return None
    answer = rng.choice(answers)
    what = rng.choice([name for name, count in counts.items() if count == answer])
    wording = rng.choice(("How many {} are there?", "How many {} do you see?", "Count the {}."))
    return Question("count", wording.format(what), str(answer))


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith("s") else f"{name}s"


def _named(scene: Scene, rng: random.Random) -> tuple[Thing, str] | None:
    """A shape and words that mean this one only, like `red circle` or `circle`."""
    ways: list[tuple[Callable[[Thing], object], str]] = [
        (_pair, "{0.colour} {0.name}"),
        (lambda thing: thing.name, "{0.name}"),
        (lambda thing: thing.colour, "{0.colour} shape"),
    ]
    key, wording = rng.choice(ways)
    thing = _only(scene.shapes, rng, key)
    return (thing, wording.format(thing)) if thing else None


def ask_side(scene: Scene, rng: random.Random) -> Question | None:
    """Whether a shape is on the left or the right, at the top or the bottom."""
    named = _named(scene, rng)
    if named is None:
        return None
    if rng.random() < 0.5:
        side, choice = scene.column_side(named[0]), "on the left or on the right"
    else:
        side, choice = scene.row_side(named[0]), "at the top or at the bottom"
    return Question("side", f"Is the {named[1]} {choice}?", side) if side else None


def ask_corner(scene: Scene, rng: random.Random) -> Question | None:
    """In which quarter of the picture a shape is."""
    named = _named(scene, rng)
    corner = named and scene.corner(named[0])
    wording = rng.choice(("Where is the {}?", "Where do you see the {}?"))
    return Question("corner", wording.format(named[1]), corner) if named and corner else None


def ask_digit(scene: Scene, rng: random.Random) -> Question | None:
    """Which digit is written."""
    return _ask_glyph(scene, rng, "digit", ("Which digit is written?", "What digit do you see?"))


def ask_word(scene: Scene, rng: random.Random) -> Question | None:
    """Which word is written."""
    return _ask_glyph(scene, rng, "word", ("Which word is written?", "What does the picture say?", "Read the word."))


def _ask_glyph(scene: Scene, rng: random.Random, kind: str, wordings: tuple[str, ...]) -> Question | None:
    names = [thing.name for thing in scene.things if thing.kind == kind]
    return Question(kind, rng.choice(wordings), names[0]) if names else None


def ask_describe(scene: Scene, rng: random.Random) -> Question | None:
    """Every shape with its quarter, where no two shapes share a quarter and nothing is written."""
    corners = {scene.corner(thing): thing for thing in scene.things if thing.kind == "shape"}
    if None in corners or len(corners) != len(scene.things):
        return None
    order = [f"{row} {column}" for row in ("top", "bottom") for column in ("left", "right")]
    parts = [f"{corners[at].colour} {corners[at].name} {at}" for at in order if at in corners]
    return Question("describe", rng.choice(("Describe the picture.", "What do you see?")), ", ".join(parts))


ASKERS: dict[Callable[[Scene, random.Random], Question | None], int] = {
    ask_colour: 6,
    ask_shape: 2,
    ask_exists: 2,
    ask_count: 5,
    ask_side: 3,
    ask_corner: 3,
    ask_digit: 1,
    ask_word: 1,
    ask_describe: 7,
}  # how often each is tried; many scenes cannot be described in full


def ask(scene: Scene, rng: random.Random) -> Question:
    """A question of a random kind among those that this scene can answer."""
    while True:
        (asker,) = rng.choices(list(ASKERS), list(ASKERS.values()))
        if question := asker(scene, rng):
            return question


def ask_which(scenes: tuple[Scene, ...], rng: random.Random) -> Question | None:
    """Which of several pictures shows a shape that only one of them has."""
    homes = Counter(pair for scene in scenes for pair in {_pair(thing) for thing in scene.shapes})
    single = [
        (pair, ORDINALS[index])
        for index, scene in enumerate(scenes)
        for pair in sorted({_pair(thing) for thing in scene.shapes})
        if homes[pair] == 1
    ]
    if not single:
        return None
    (colour, name), answer = rng.choice(single)
    return Question("which", f"Which picture has {_article(f'{colour} {name}')}?", answer)
