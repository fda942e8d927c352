"""The metrics of one process, from all who have some."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from common.metrics.build import show_build
from common.metrics.series import PREFIX, Series, Source
from common.metrics.stages import StageTimes

Family = CounterMetricFamily | GaugeMetricFamily


class Metrics(Collector):
    """Owns a registry of its own, so that several workers can live in one process.

    `registry` takes histograms, which no source can give; `stages` is the one that stages share.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sources: list[Source] = []
        self.stages = StageTimes(self.registry)
        show_build(self.registry)
        self.registry.register(self)

    def add(self, source: Source) -> None:
        """Ask `source` each time somebody looks. Several may give the same series with other label values."""
        self._sources.append(source)

    def collect(self) -> Iterable[Family]:
        """For `registry`: series of one name become one family."""
        families: dict[str, Family] = {}
        for source in self._sources:
            for series in source():
                family = families.setdefault(series.name, _family(series))
                for labels, value in series.values.items():
                    family.add_metric(labels, value)
        return families.values()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


def _family(series: Series) -> Family:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    return kind(PREFIX + series.name, series.text, labels=series.labels)
