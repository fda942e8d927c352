"""Numbers with a name, as Prometheus wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

PREFIX = "triptych_"
Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class Series:
    """One metric, now: a value for each combination of label values, in the order of `labels`.

    `name` has no `triptych_` in front, and a counter's no `_total` behind. Seconds and bytes are named as such.
    """

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    values: Values
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Series]]


def gauge(name: str, text: str, value: float) -> Series:
    """A number that goes up and down."""
    return Series("gauge", name, text, {(): value})


def counter(name: str, text: str, value: float) -> Series:
    """A number that only grows, until the process restarts."""
    return Series("counter", name, text, {(): value})


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Series:
    """Gauges by one label."""
    return Series("gauge", name, text, {(key,): value for key, value in values.items()}, (label,))


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Series:
    """Counters by one label."""
    return Series("counter", name, text, {(key,): value for key, value in values.items()}, (label,))
