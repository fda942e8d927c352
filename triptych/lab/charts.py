"""The report's plots, as SVG that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from triptych.lab.record import Row
from triptych.lab.summary import TITLES, Line, by_turn, ratio_of

# Colours that people with any colour vision tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "triptych", "axes.spines.top": False, "axes.spines.right": False}


def overall(lines: Sequence[Line]) -> str:
    """Token-weighted shares of the prompt by group: read, predicted."""

    def plot(axes: Axes) -> None:
        names = [line.name for line in lines]
        axes.bar(names, [line.read_ratio or 0 for line in lines], color=COLOURS[0], label="measured")
        predicted = [(line.predicted_read or 0) / line.prompt_tokens if line.prompt_tokens else 0 for line in lines]
        if any(line.predicted_read is not None for line in lines):
            axes.plot(names, predicted, "D", color=COLOURS[4], markersize=5, label="predicted")
        axes.set(ylim=(0, 1.05), ylabel="share of prompt tokens read")
        axes.legend(frameon=False)

    return _svg(plot)


def distribution(rows: Sequence[Row]) -> str:
    """Each call's share, by group: what an average hides."""
    names = sorted({row.group for row in rows})

    def plot(axes: Axes) -> None:
        shares = [[ratio_of(row) or 0 for row in rows if row.group == name] for name in names]
        axes.boxplot(shares, tick_labels=names, widths=0.5, medianprops={"color": COLOURS[4]})
        axes.set(ylim=(-0.02, 1.05), ylabel="read share of each request")

    return _svg(plot)


def curves(rows: Sequence[Row]) -> str:
    """The read share turn by turn for each policy; a ring marks turns with which a picture left the context."""
    names = sorted({row.group for row in rows if row.experiment == "session"})

    def plot(axes: Axes) -> None:
        for name, colour in zip(names, COLOURS, strict=False):
            curve = by_turn(rows, name)
            axes.plot(
                [turn for turn, _, _ in curve], [ratio for _, ratio, _ in curve], color=colour, label=TITLES[name]
            )
            slid = [(turn, ratio) for turn, ratio, slid in curve if slid]
            axes.plot(*zip(*slid, strict=True), "o", color=colour, fillstyle="none", markersize=9) if slid else None
        axes.set(ylim=(-0.02, 1.05), xlabel="turn", ylabel="share of prompt tokens read")
        axes.legend(frameon=False)

    return _svg(plot)


def bars(lines: Sequence[Line], value: Callable[[Line], float], label: str) -> str:
    """One figure by group."""

    def plot(axes: Axes) -> None:
        axes.barh([line.title for line in lines], [value(line) for line in lines], color=COLOURS[0])
        axes.invert_yaxis()
        axes.set(xlabel=label)

    return _svg(plot, height=0.6 + 0.36 * len(lines))


def _svg(plot: Callable[[Axes], None], height: float = 3.2) -> str:
    """Without date and random names: equal rows give equal files."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, height), layout="constrained")
        plot(figure.subplots())
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()[file.getvalue().index("<svg") :]
