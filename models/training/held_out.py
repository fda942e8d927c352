"""Freshly drawn questions that training never sees; needs only Pillow, so a test of a whole cluster can ask them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from models.training.dialogues import Dialogue, Message, random_dialogue
from models.training.scenes import draw

KINDS = ("colour", "shape", "exists", "count", "side", "corner", "digit", "word", "describe", "which")


class Item(NamedTuple):
    """One question to ask: the chat so far, its pictures in order, and the only right answer."""

    messages: list[Message]
    images: list[Image.Image]
    answer: str
    kind: str


def held_out(count: int, seed: int = 0) -> Iterator[Item]:
    """`count` questions, as many of each kind; equal seeds give equal questions.

    One in three is a first question, the others come with one or two answered questions before them.
    """
    for index in range(count):
        rng = random.Random(f"held-out-{seed}-{index}")
        dialogue = _dialogue(rng, KINDS[index % len(KINDS)], turns=index % 3 + 1)
        last = dialogue.questions[-1]
        yield Item(dialogue.messages(), [draw(scene) for scene in dialogue.scenes], last.answer, last.kind)


def _dialogue(rng: random.Random, kind: str, turns: int) -> Dialogue:
    """A random dialogue that ends with a question of this kind."""
    while True:
        dialogue = random_dialogue(rng, turns=turns)
        if dialogue.questions[-1].kind == kind:
            return dialogue


class Tally:
    """Exact answers per kind of question."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.right: Counter[str] = Counter()

    def add(self, item: Item, answer: str) -> None:
        """Count one answer; only an equal string is right."""
        right = int(answer.strip() == item.answer)
        for name in (item.kind, "all"):
            self.asked[name] += 1
            self.right[name] += right

    def shares(self) -> dict[str, float]:
        """Share of exact answers per kind, and of all."""
        return {name: self.right[name] / asked for name, asked in sorted(self.asked.items())}
