"""The demo's conversations: pictures, questions and the only right answers, as `models/demo/script.json` has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import ConfigError
from triptych.messages import Image

FOLDER = Path(__file__).parents[2] / "models" / "demo"


@dataclass(frozen=True)
class Turn:
    """One question, its pictures and its only right answer."""

    parts: tuple[str | Image, ...]
    pictures: tuple[str, ...]
    answer: str

    @property
    def text(self) -> str:
        """The question without the pictures' labels."""
        return str(self.parts[-1])


@dataclass(frozen=True)
class Conversation:
    """Turns that belong together; every turn sees the ones before it."""

    title: str
    turns: tuple[Turn, ...]


def load_script(folder: Path = FOLDER) -> list[Conversation]:
    """Read script.json and the pictures beside it; ConfigError when there is none."""
    try:
        entries = json.loads((folder / "script.json").read_text())
    except OSError as exc:
        raise ConfigError(f"the demo's pictures are not at {folder}: run it from a checkout") from exc
    return [Conversation(entry["title"], tuple(_turn(folder, turn) for turn in entry["turns"])) for entry in entries]


def _turn(folder: Path, entry: dict[str, Any]) -> Turn:
    names = tuple(part["image"] for part in entry["ask"] if isinstance(part, dict))
    parts = tuple(Image.from_file(folder / part["image"]) if isinstance(part, dict) else part for part in entry["ask"])
    return Turn(parts, names, entry["answer"])
