"""What many calls add up to. Ratios are weighted by tokens: many small hits do not outweigh one large miss. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from triptych.lab.groups import GROUPS
from triptych.lab.record import Row

TITLES = {group.name: group.title for group in GROUPS} | {
    "append": "append-only",
    "window": "sliding window of images",
    "roll-over": "segment roll-over",
    "references": "image references",
    "other-salt": "another salt each turn",
    "redis-flushed": "Redis flushed between turns",
    "worker-lost": "decode worker lost between turns",
}


@dataclass(frozen=True)
class Line:
    """Figures of one group. None where the endpoint does not report what they need."""

    name: str
    calls: int
    prompt_tokens: int
    read_tokens: int | None
    predicted_read: int | None
    most_difference: int | None
    read_ratio: float | None
    write_ratio: float | None
    embedding_hit_ratio: float | None
    first_token_ms: float
    total_ms: float
    cost: float
    right: float | None

    @property
    def title(self) -> str:
        """What the group changes."""
        return TITLES.get(self.name, self.name)

    @property
    def as_predicted(self) -> bool | None:
        """Whether every call read exactly what the oracle says."""
        return None if self.most_difference is None else self.most_difference == 0


def second_calls(rows: Iterable[Row]) -> list[Row]:
    """Of pairs: the calls that are compared."""
    return [row for row in rows if row.experiment == "pair" and row.turn == 2]


def lines(rows: Sequence[Row], key: Callable[[Row], str] = lambda row: row.group) -> list[Line]:
    """One line a group, in the order of their names."""
    return [line(name, [row for row in rows if key(row) == name]) for name in sorted({key(row) for row in rows})]


def line(name: str, rows: Sequence[Row]) -> Line:
    """The figures of some rows, of which there is at least one."""
    prompt = sum(row.measured.prompt_tokens for row in rows)
    read = _sum(row.measured.read_tokens for row in rows)
    creation = _sum(row.measured.creation_tokens for row in rows)
    hits, misses = (
        _sum(row.measured.embedding_hits for row in rows),
        _sum(row.measured.embedding_misses for row in rows),
    )
    judged = [row.right for row in rows if row.right is not None]
    differences = [abs(row.difference) for row in rows if row.difference is not None]
    return Line(
        name,
        len(rows),
        prompt,
        read,
        _sum(row.predicted_read for row in rows),
        max(differences, default=None),
        _share(read, prompt),
        _share(creation, prompt),
        _share(hits, (hits or 0) + (misses or 0)),
        median(row.measured.first_token_ms for row in rows),
        median(row.measured.total_ms for row in rows),
        mean(row.cost for row in rows),
        mean(judged) if judged else None,
    )


def by_turn(rows: Iterable[Row], policy: str) -> list[tuple[int, float, bool]]:
    """(turn, token-weighted read ratio, whether the context slid in any repeat) of a policy's sessions."""
    chosen = [row for row in rows if row.experiment == "session" and row.group == policy]
    curve = []
    for turn in sorted({row.turn for row in chosen}):
        at = [row for row in chosen if row.turn == turn]
        ratio = _share(_sum(row.measured.read_tokens for row in at), sum(row.measured.prompt_tokens for row in at))
        curve.append((turn, ratio or 0.0, any(row.slid for row in at)))
    return curve


def ratio_of(row: Row) -> float | None:
    """Part of one prompt that was read."""
    return _share(row.measured.read_tokens, row.measured.prompt_tokens)


def _sum(values: Iterable[int | None]) -> int | None:
    given = [value for value in values if value is not None]
    return sum(given) if given else None


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None or not whole else part / whole
