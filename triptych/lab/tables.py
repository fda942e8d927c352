"""The figures as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from triptych.lab.summary import Line

NUMBERS = (
    "calls",
    "prompt",
    "read",
    "predicted",
    "read ratio",
    "write ratio",
    "embeddings",
    "first token",
    "cost",
    "right",
)


def to_table(title: str, lines: Sequence[Line]) -> Table:
    """One row a group; a group that read anything but what the oracle says is marked."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("group")
    for heading in NUMBERS:
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*cells(line))
    return table


def cells(line: Line) -> list[str]:
    """One row as text."""
    name = f"{line.name}: {line.title}" if len(line.name) == 1 else line.title
    return [
        name,
        str(line.calls),
        str(line.prompt_tokens),
        _count(line.read_tokens),
        f"{_count(line.predicted_read)} {_mark(line.as_predicted)}".strip(),
        percent(line.read_ratio),
        percent(line.write_ratio),
        percent(line.embedding_hit_ratio),
        f"{line.first_token_ms:.0f} ms",
        f"{line.cost * 1e6:.0f}",
        percent(line.right),
    ]


def percent(share: float | None) -> str:
    """A share for people; a dash where it is unknown."""
    return "–" if share is None else f"{share:.1%}"


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _mark(as_predicted: bool | None) -> str:
    return {None: "", True: "✓", False: "✗"}[as_predicted]
