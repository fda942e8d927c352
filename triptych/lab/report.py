"""One self-contained HTML page of an experiment: tables and plots, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from triptych.lab import charts
from triptych.lab.record import Prices, Row
from triptych.lab.summary import Line, lines, second_calls
from triptych.lab.tables import NUMBERS, cells

LEFT, STAYED = "a picture left", "none left"


@dataclass(frozen=True)
class Plot:
    """A picture and the sentence below it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A table with its plots."""

    name: str
    title: str
    rows: list[list[str]]
    plots: list[Plot]


def write_report(path: Path, rows: Sequence[Row], target: str, prices: Prices) -> None:
    """Write the page."""
    template = files("triptych.lab").joinpath("report.html.jinja").read_text()
    page = Environment(autoescape=True, trim_blocks=True).from_string(template)
    off = [row for row in rows if row.difference]
    path.write_text(
        page.render(
            calls=len(rows),
            target=target,
            prices=prices,
            off=bool(off),
            verdict=verdict(rows),
            sections=_sections(rows),
            headings=NUMBERS,
        )
    )


def verdict(rows: Sequence[Row]) -> str:
    """Whether the cache did what the rule says, in one sentence."""
    judged = [row for row in rows if row.difference is not None]
    off = sorted({row.group for row in judged if row.difference})
    if not judged:
        return "This endpoint does not show its tokens, so nothing could be predicted."
    if not off:
        return f"All {len(judged)} calls read exactly the tokens that the block rule predicts."
    return f"Not as predicted: {', '.join(off)}."


def _sections(rows: Sequence[Row]) -> list[Section]:
    sections = []
    for name, title, chosen in _pairs(rows):
        found = lines(chosen)
        sections.append(Section(name, title, [cells(line) for line in found], _plots(found, chosen)))
    if replayed := [row for row in rows if row.experiment == "replay"]:
        found = lines(replayed)
        table = [cells(line) for line in found]
        sections.append(Section("replay", "Replayed trace", table, _plots(found, replayed)))
    if broken := [row for row in rows if row.experiment == "break" and row.turn > 1]:
        found = lines(broken)
        sections.append(Section("breaks", "What a break between turns costs", [cells(line) for line in found], []))
    if sessions := [row for row in rows if row.experiment == "session"]:
        found = lines(sessions)
        curve = Plot(charts.curves(sessions), "Turn by turn; a ring: a picture left the context with this turn.")
        table = [cells(line) for line in found]
        sections.append(Section("sessions", "Policies over many turns", table, [curve, *_trade(found)]))
    return sections + _evictions(rows)


def _evictions(rows: Sequence[Row]) -> list[Section]:
    """Later turns of sessions, by whether a picture left the context with them."""
    later = [row for row in rows if row.experiment == "session" and row.turn > 1]
    if not any(row.slid for row in later):
        return []
    found = lines(later, lambda row: LEFT if row.slid else STAYED)
    table = [cells(line) for line in found]
    return [Section("evictions", "Turns with and without eviction", table, [_overall(found), *_trade(found)])]


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    second = second_calls(rows)
    kinds = [("pictures", "Second requests with pictures", True), ("words", "Second requests without pictures", False)]
    found = [(name, title, [row for row in second if row.pictures is pictures]) for name, title, pictures in kinds]
    return [section for section in found if section[2]]


def _plots(found: Sequence[Line], rows: Sequence[Row]) -> list[Plot]:
    return [
        _overall(found),
        Plot(charts.distribution(rows), "The same request by request: what the average hides."),
        *_trade(found),
    ]


def _overall(found: Sequence[Line]) -> Plot:
    return Plot(charts.overall(found), "Token-weighted read share by group.")


def _trade(found: Sequence[Line]) -> list[Plot]:
    return [
        Plot(charts.bars(found, lambda line: line.first_token_ms, "milliseconds"), "Time to the first token, median."),
        Plot(charts.bars(found, lambda line: line.cost * 1e6, "millionths"), "Mean cost of a call."),
        Plot(charts.bars(found, lambda line: line.right or 0, "share"), "Answers that are right."),
    ]
