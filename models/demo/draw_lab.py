"""Draws the pictures of the cache laboratory and writes `lab/material.json`.

Run from the repository's root: `python -m models.demo.draw_lab`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from models.training.dialogues import SMALL_TALK
from models.training.questions import ask_shape, ask_word
from models.training.scenes import COLOURS, SHAPES, Scene, Thing, draw

FOLDER = Path(__file__).parent / "lab"
PICTURES = 16
SYSTEM = "Answer briefly."
OPENING = [["Hello!", SMALL_TALK["Hello!"]], ["What can you do?", SMALL_TALK["What can you do?"]]]


def scene(index: int) -> Scene:
    """Three shapes of three colours in different places; every fourth picture is a word with a shape."""
    rng = random.Random(f"lab-{index}")
    colours, names = rng.sample(list(COLOURS), 3), rng.sample(SHAPES, 3)
    if index % 4 == 3:
        word = Thing("word", rng.choice(("moon", "fish", "tree", "bird")), "black", 0, 0)
        return Scene(4, 4, (word, Thing("shape", names[0], colours[0], 2, rng.randrange(4))))
    rows = rng.sample(range(4), 3)
    things = (
        Thing("shape", name, colour, row, rng.randrange(6))
        for name, colour, row in zip(names, colours, rows, strict=True)
    )
    return Scene(4, 6, tuple(things))


def entry(index: int) -> dict[str, Any]:
    """A picture's file, its question with the only right answer, and what it shows in words."""
    drawn, rng = scene(index), random.Random(f"question-{index}")
    question = (ask_word if index % 4 == 3 else ask_shape)(drawn, rng)
    things = [
        f"the word {thing.name}" if thing.kind == "word" else f"a {thing.colour} {thing.name}" for thing in drawn.things
    ]
    text, answer = (question.text, question.answer) if question else ("What do you see?", ", ".join(things))
    return {"picture": f"{index + 1:02}.png", "question": text, "answer": answer, "note": ", ".join(things)}


def main() -> None:
    """Write everything anew; equal runs give equal files."""
    FOLDER.mkdir(exist_ok=True)
    for index in range(PICTURES):
        draw(scene(index)).save(FOLDER / f"{index + 1:02}.png")
    material = {"system": SYSTEM, "opening": OPENING, "items": [entry(index) for index in range(PICTURES)]}
    (FOLDER / "material.json").write_text(json.dumps(material, indent=1) + "\n")


if __name__ == "__main__":
    main()
