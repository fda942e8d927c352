"""Fetch or compute: decided by measured rates, or by the setting."""

from __future__ import annotations

import pytest

from services.prefill.rates import Rate, Rates


def test_a_rate_follows_its_measurements_slowly() -> None:
    rate = Rate()
    assert rate.seconds(10) is None
    rate.note(100, 1.0)
    rate.note(200, 1.0)
    assert rate.per_second == pytest.approx(120)
    assert rate.seconds(240) == pytest.approx(2)


def test_nothing_measured_means_try() -> None:
    rates = Rates()
    rates.compute.note(1000, 1.0)
    assert rates.worth_fetching(16, 1 << 20)


@pytest.mark.parametrize(("bytes_per_second", "worth"), [(2e6, True), (0.5e6, False)])
def test_the_quicker_way_wins(bytes_per_second: float, worth: bool) -> None:
    rates = Rates()
    rates.compute.note(100, 1.0)
    rates.fetch.note(bytes_per_second, 1.0)
    assert rates.worth_fetching(tokens=100, size_bytes=1_000_000) is worth


@pytest.mark.parametrize(("pull", "worth"), [("always", True), ("never", False)])
def test_the_setting_overrules(pull: str, worth: bool) -> None:
    rates = Rates(pull)  # type: ignore[arg-type]
    rates.compute.note(1e9 if worth else 1e-9, 1.0)
    rates.fetch.note(1e-9 if worth else 1e9, 1.0)
    assert rates.worth_fetching(16, 1000) is worth


def test_nonsense_is_not_noted() -> None:
    rate = Rate()
    rate.note(0, 1.0)
    rate.note(5, 0.0)
    assert rate.per_second is None


def test_one_slow_fetch_is_tried_again_but_not_at_once() -> None:
    rates = Rates()
    rates.compute.note(100, 1.0)
    rates.fetch.note(1e5, 1.0)
    refusals = 0
    while not rates.worth_fetching(tokens=100, size_bytes=1_000_000):
        refusals += 1
    assert refusals == 48
    rates.fetch.note(1e7, 1.0)
    assert rates.worth_fetching(tokens=100, size_bytes=1_000_000)
