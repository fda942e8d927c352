"""What an experiment talks about: a system prompt, and pictures with a question and its only right answer each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from triptych.errors import ConfigError
from triptych.messages import Image, Message, assistant, system, user

FOLDER = Path(__file__).parents[2] / "models" / "demo" / "lab"


@dataclass(frozen=True)
class Item:
    """One thing to talk about. `note` says in words what the picture shows."""

    picture: Image
    question: str
    answer: str
    note: str


@dataclass(frozen=True)
class Material:
    """Fixed content: everything that an experiment varies is which of it is sent, and in which order.

    `opening` are questions and answers in words that begin every conversation.
    """

    system: str
    opening: tuple[tuple[str, str], ...]
    items: tuple[Item, ...]

    def begin(self) -> list[Message]:
        """The messages before the first item."""
        talk = [system(self.system)]
        for question, answer in self.opening:
            talk += [user(question), assistant(answer)]
        return talk

    def item(self, index: int) -> Item:
        """The pictures in turn, from the beginning again after the last one."""
        return self.items[index % len(self.items)]


def load_material(folder: Path = FOLDER) -> Material:
    """Read `material.json` and the pictures beside it; ConfigError when it is not there or not of that form."""
    try:
        content = json.loads((folder / "material.json").read_text())
        opening = tuple((question, answer) for question, answer in content["opening"])
        return Material(content["system"], opening, tuple(_item(folder, entry) for entry in content["items"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} is no lab material: {error}") from error


def reencoded(picture: Image) -> Image:
    """The same pixels in another file: BMP. ConfigError where Pillow is not installed."""
    try:
        from PIL import Image as Pillow  # noqa: PLC0415 - the SDK itself does without
    except ImportError as error:
        raise ConfigError("group F needs Pillow: install the extra `lab`") from error
    file = BytesIO()
    Pillow.open(BytesIO(picture.data or b"")).convert("RGB").save(file, "BMP")
    return Image.from_bytes(file.getvalue())


def _item(folder: Path, entry: dict[str, Any]) -> Item:
    return Item(Image.from_file(folder / entry["picture"]), entry["question"], entry["answer"], entry["note"])
