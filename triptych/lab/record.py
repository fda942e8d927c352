"""One line of an experiment: everything that was measured of one call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from triptych.errors import InvalidArgumentError


@dataclass(frozen=True)
class Prices:
    """Money for a million tokens, by kind; the defaults are made up and only their ratios mean anything."""

    uncached: float = 1.0
    read: float = 0.1
    creation: float = 1.25
    completion: float = 4.0

    def input_cost(self, measured: Measured) -> float:
        """What the prompt of one call costs; tokens of which nothing is told count as uncached."""
        read, creation = measured.read_tokens or 0, measured.creation_tokens or 0
        uncached = measured.prompt_tokens - read - creation
        return (uncached * self.uncached + read * self.read + creation * self.creation) / 1e6

    def cost(self, measured: Measured) -> float:
        """What one call costs, with its answer."""
        return self.input_cost(measured) + measured.completion_tokens * self.completion / 1e6


@dataclass(frozen=True)
class Measured:
    """What an endpoint tells of one call; None where it tells nothing. Times in milliseconds."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    read_tokens: int | None = None
    creation_tokens: int | None = None
    uncached_tokens: int | None = None
    visual_tokens: int | None = None
    images: int | None = None
    unique_images: int | None = None
    embedding_hits: int | None = None
    embedding_misses: int | None = None
    divergence: str | None = None
    divergence_position: int | None = None
    first_token_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True)
class Row:
    """One call of one trial. `predicted_read` is the oracle's; `slid`: a picture left the context with this call."""

    experiment: str
    group: str
    repeat: int
    history: int
    pictures: bool
    turn: int
    measured: Measured
    predicted_read: int | None = None
    right: bool | None = None
    input_cost: float = 0.0
    cost: float = 0.0
    slid: bool = False

    @property
    def difference(self) -> int | None:
        """Tokens read more (or, negative, fewer) than predicted."""
        read = self.measured.read_tokens
        return None if read is None or self.predicted_read is None else read - self.predicted_read

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))


def row_from_json(line: str) -> Row:
    """The row of one line; InvalidArgumentError when it is none. Unknown fields of later versions are ignored."""
    try:
        content = json.loads(line)
        measured = Measured(**_known(Measured, content.pop("measured")))
        return Row(measured=measured, **_known(Row, content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"not a line of the lab: {error}") from error


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """JSON lines."""
    path.write_text("".join(f"{row.to_json()}\n" for row in rows))


def read_rows(path: Path) -> list[Row]:
    """Rows of a file that `write_rows` wrote."""
    return [row_from_json(line) for line in lines_of(path) if line]


def lines_of(path: Path) -> list[str]:
    """The lines of a file; InvalidArgumentError when it is no text."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is no text") from error


def _known(kind: type[Row | Measured], content: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
