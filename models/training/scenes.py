"""Scenes of coloured shapes, digits and words on a grid of 28-pixel cells, and how they are drawn.

A cell is as large as one visual token (patch 14, merge 2), so a small vision tower can name what stands in it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache

from PIL import Image, ImageDraw, ImageFont

CELL = 28  # pixels
COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 205, 30),
    "purple": (140, 50, 170),
    "orange": (245, 130, 20),
}
SHAPES = ("circle", "square", "triangle", "star", "cross")
DIGITS = tuple("0123456789")
WORDS = ("cat", "dog", "sun", "hat", "tree", "fish", "book", "moon", "bird", "milk")
INK = (30, 30, 30)
BACKGROUNDS = ((255, 255, 255), (246, 244, 236), (236, 242, 248), (240, 240, 240))
GRIDS = ((3, 3), (4, 4), (4, 6), (6, 4), (5, 5), (4, 8), (8, 4), (6, 6))  # rows, columns
SMALL_GRIDS = ((3, 3), (4, 4), (3, 4), (4, 3))

Point = tuple[float, float]


@dataclass(frozen=True)
class Thing:
    """One shape, digit or word; `row` and `col` are its (first) cell, `dx`, `dy` its shift in pixels."""

    kind: str
    name: str
    colour: str
    row: int
    col: int
    radius: int = 11
    dx: int = 0
    dy: int = 0

    @property
    def width(self) -> int:
        """How many cells it spans; words take two."""
        return 2 if self.kind == "word" else 1

    @property
    def centre(self) -> Point:
        """Its middle in pixels, (x, y)."""
        return (self.col + self.width / 2) * CELL + self.dx, (self.row + 0.5) * CELL + self.dy


@dataclass(frozen=True)
class Scene:
    """A grid with things on it; everything `draw` needs is in here, so equal scenes give equal pictures."""

    rows: int
    cols: int
    things: tuple[Thing, ...]
    background: tuple[int, int, int] = BACKGROUNDS[0]

    @property
    def shapes(self) -> list[Thing]:
        """The things that have a colour and a shape."""
        return [thing for thing in self.things if thing.kind == "shape"]

    def column_side(self, thing: Thing) -> str | None:
        """`left`, `right`, or None where the thing stands in the middle."""
        return _half(2 * thing.col + thing.width, self.cols, "left", "right")

    def row_side(self, thing: Thing) -> str | None:
        """`top`, `bottom`, or None where the thing stands in the middle."""
        return _half(2 * thing.row + 1, self.rows, "top", "bottom")

    def corner(self, thing: Thing) -> str | None:
        """For example `top left`, or None where the thing stands in a middle row or column."""
        row, column = self.row_side(thing), self.column_side(thing)
        return f"{row} {column}" if row and column else None


def _half(doubled_centre: int, size: int, low: str, high: str) -> str | None:
    if doubled_centre == size:
        return None
    return low if doubled_centre < size else high


def random_scene(rng: random.Random, *, most: int = 6, grid: tuple[int, int] | None = None) -> Scene:
    """A scene with one to `most` shapes, and now and then a digit and a word."""
    rows, cols = grid or rng.choice(GRIDS)
    free = [(row, col) for row in range(rows) for col in range(cols)]
    things = [_glyph(rng, "word", WORDS, free, 2)] if rng.random() < 0.3 else []
    if rng.random() < 0.3:
        things.append(_glyph(rng, "digit", DIGITS, free, 1))
    colours = rng.sample(list(COLOURS), rng.randint(1, len(COLOURS)))
    names = rng.sample(SHAPES, rng.randint(1, len(SHAPES)))
    count = rng.randint(1, min(most, len(free) - 2))
    things += [_shape(rng, rng.choice(colours), rng.choice(names), free) for _ in range(count)]
    return Scene(rows, cols, tuple(things), rng.choice(BACKGROUNDS))


def _shape(rng: random.Random, colour: str, name: str, free: list[tuple[int, int]]) -> Thing:
    row, col = free.pop(rng.randrange(len(free)))
    radius = rng.randint(9, 12)
    slack = 13 - radius
    return Thing("shape", name, colour, row, col, radius, rng.randint(-slack, slack), rng.randint(-slack, slack))


def _glyph(rng: random.Random, kind: str, names: tuple[str, ...], free: list[tuple[int, int]], width: int) -> Thing:
    starts = [cell for cell in free if all((cell[0], cell[1] + step) in free for step in range(width))]
    row, col = rng.choice(starts)
    for step in range(width):
        free.remove((row, col + step))
    return Thing(kind, rng.choice(names), "black", row, col, 11, rng.randint(-2, 2), rng.randint(-2, 2))


def draw(scene: Scene) -> Image.Image:
    """The scene as an RGB picture of `cols * 28` by `rows * 28` pixels with a thin frame."""
    width, height = scene.cols * CELL, scene.rows * CELL
    picture = Image.new("RGB", (width, height), scene.background)
    canvas = ImageDraw.Draw(picture)
    canvas.rectangle((0, 0, width - 1, height - 1), outline=INK, width=2)
    for thing in scene.things:
        _draw_thing(canvas, thing)
    return picture


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing) -> None:
    x, y = thing.centre
    if thing.kind != "shape":
        canvas.text((x, y), thing.name, fill=INK, font=_font(20 if thing.kind == "word" else 24), anchor="mm")
    elif thing.name == "circle":
        canvas.ellipse(
            (x - thing.radius, y - thing.radius, x + thing.radius, y + thing.radius), fill=COLOURS[thing.colour]
        )
    else:
        corners = [(x + dx * thing.radius, y + dy * thing.radius) for dx, dy in _outline(thing.name)]
        canvas.polygon(corners, fill=COLOURS[thing.colour])


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


@cache
def _outline(name: str) -> tuple[Point, ...]:
    """The corners of a shape of radius 1 around the origin, y downwards."""
    if name == "square":
        return (-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)
    if name == "triangle":
        return (0, -1), (1, 0.8), (-1, 0.8)
    if name == "star":
        turns = [(math.pi * (step / 5 - 0.5), 1.1 if step % 2 == 0 else 0.45) for step in range(10)]
        return tuple((length * math.cos(turn), length * math.sin(turn)) for turn, length in turns)
    arm = 0.35
    return (
        (-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm),
        (arm, 1), (-arm, 1), (-arm, arm), (-1, arm), (-1, -arm), (-arm, -arm),
    )  # fmt: skip
