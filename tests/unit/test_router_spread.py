"""Histograms of the router: the same figures as prometheus_client's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from services.router.figures.spread import Spread, Spreads

BOUNDS = (0.001, 0.25, 1.0, 10.0)
VALUES = st.lists(st.sampled_from([0.0, *BOUNDS, 11.0, 1e9]) | st.floats(0, 100))


def page(registry: CollectorRegistry) -> list[str]:
    """What a scrape reads, without the time at which a series began."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(VALUES)
def test_the_page_is_that_of_the_clients_own_histogram(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread, histogram = Spread(BOUNDS), Histogram("x", "text", ["stage"], buckets=BOUNDS, registry=theirs)
    ours.register(Spreads("x", "text", {("a",): spread}, ("stage",)))
    child = histogram.labels("a")
    for value in values:
        spread.observe(value)
        child.observe(value)
    assert page(ours) == page(theirs)


def test_several_at_once_count_as_often() -> None:
    at_once, one_by_one = Spread(BOUNDS), Spread(BOUNDS)
    at_once.observe(0.5, 3)
    for _ in range(3):
        one_by_one.observe(0.5)
    assert list(at_once.cumulative()) == list(one_by_one.cumulative())
    assert at_once.total == one_by_one.total
