"""Chats with pictures at every place where one can stand."""

from __future__ import annotations

from typing import Any

from PIL import Image

from tests.pictures import noise

TOLERANCE = 1e-4
"""Largest difference of logits that another order of summation in float32 explains."""

IMAGE = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


# Odd sizes, so that rows and columns cannot be mixed up without being noticed.
PICTURES = [noise(101, 67, 1), noise(45, 190, 2), noise(30, 29, 3), noise(260, 33, 4)]
CHATS: dict[str, tuple[list[dict[str, Any]], list[Image.Image]]] = {
    "text": ([{"role": "user", "content": "Describe a red chair."}], []),
    "first": ([{"role": "user", "content": [IMAGE, text("What is in this picture?")]}], PICTURES[:1]),
    "last": ([{"role": "user", "content": [text("What is in this picture?"), IMAGE]}], PICTURES[1:2]),
    "between": ([{"role": "user", "content": [text("Compare "), IMAGE, text(" with "), IMAGE]}], PICTURES[1:3]),
    "adjacent": ([{"role": "user", "content": [IMAGE, IMAGE, IMAGE, text("List them.")]}], PICTURES[:3]),
    "turns": (
        [
            {"role": "user", "content": [IMAGE, text("One?")]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [text("And "), IMAGE, IMAGE, text(" or "), IMAGE]},
        ],
        PICTURES,
    ),
}
