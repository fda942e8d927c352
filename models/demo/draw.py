"""Draws the demo's pictures. Run from the repository's root after a change of a scene: `python -m models.demo.draw`."""

from __future__ import annotations

from pathlib import Path

from models.training.scenes import BACKGROUNDS, Scene, Thing, draw

FOLDER = Path(__file__).parent
SHAPES = Scene(
    4,
    6,
    (
        Thing("shape", "star", "red", 0, 1),
        Thing("shape", "circle", "blue", 1, 4),
        Thing("shape", "square", "green", 3, 0),
        Thing("shape", "triangle", "yellow", 3, 5),
    ),
)
PARTY = Scene(
    4,
    4,
    (
        Thing("shape", "cross", "purple", 0, 0),
        Thing("shape", "circle", "orange", 2, 2),
        Thing("shape", "circle", "green", 3, 0),
    ),
    BACKGROUNDS[2],
)
SIGN = Scene(3, 3, (Thing("word", "moon", "black", 1, 0), Thing("shape", "star", "yellow", 0, 2)), BACKGROUNDS[1])
NUMBER = Scene(3, 3, (Thing("digit", "7", "black", 1, 1), Thing("shape", "square", "blue", 2, 0)), BACKGROUNDS[3])
FILES = {"shapes.png": SHAPES, "party.png": PARTY, "sign.png": SIGN, "number.png": NUMBER, "number.bmp": NUMBER}


def main() -> None:
    """Write every picture beside this file; `number` twice, as two different files of one picture."""
    for name, scene in FILES.items():
        draw(scene).save(FOLDER / name)


if __name__ == "__main__":
    main()
