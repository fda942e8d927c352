"""Histograms that one thread writes to: some are observed at every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Spread:
    """How values are spread over the ranges up to and including each of `bounds`, which ascend, and beyond the last.

    prometheus_client's own histogram takes a lock for every number that it changes, and six times as long.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self._bounds)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`value` came up `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """For each bound, as Prometheus spells it, how many values were not above it."""
        return zip(map(floatToGoString, self._bounds), accumulate(self._counts), strict=True)


class Spreads(Collector):
    """One metric: a spread for each combination of label values, all known from the start."""

    def __init__(
        self, name: str, text: str, spreads: Mapping[tuple[str, ...], Spread], labels: Sequence[str] = ()
    ) -> None:
        self._name, self._text, self._spreads, self._labels = name, text, spreads, labels

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """See `Collector`."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, spread in self._spreads.items():
            family.add_metric(values, list(spread.cumulative()), spread.total)
        return [family]
