"""Quotas, with time told by the test."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.access.allowance import Allowance, Quotas
from services.router.access.quota import Bucket, Limits, Meter
from triptych.errors import QuotaExceededError


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowances(clock: Clock, count: int, **limits: int) -> list[Allowance]:
    quotas = Quotas(clock)
    return [quotas.allowance("acme", Limits(**limits)) for _ in range(count)]


def test_requests_in_flight_are_bounded_and_end(clock: Clock) -> None:
    one, two, three = allowances(clock, 3, requests=2)
    one.begin()
    two.begin()
    with pytest.raises(QuotaExceededError, match="2 requests at the same time") as caught:
        three.begin()
    assert caught.value.retry_after_s
    one.close()
    three.begin()


def test_requests_a_minute_come_back_with_time(clock: Clock) -> None:
    quotas, limits = Quotas(clock), Limits(requests_per_minute=30)
    for _ in range(30):
        with closing(quotas.allowance("acme", limits)) as allowance:
            allowance.begin()
    with pytest.raises(QuotaExceededError) as caught:
        quotas.allowance("acme", limits).begin()
    clock.now += caught.value.retry_after_s or 0
    assert caught.value.retry_after_s == pytest.approx(2.0)
    quotas.allowance("acme", limits).begin()


def test_images_are_counted_by_what_they_show(clock: Clock) -> None:
    one, two, three = allowances(clock, 3, images=2)
    one.reserve(1, 1, ["cat", "cat", "cat", "dog"])
    two.reserve(1, 1, ["dog", "cat"])
    with pytest.raises(QuotaExceededError, match="2 different images"):
        three.reserve(1, 1, ["cow"])
    one.close()
    with pytest.raises(QuotaExceededError):
        three.reserve(1, 1, ["cow"])
    two.close()
    three.reserve(1, 1, ["cow"])


def test_what_was_not_generated_is_given_back(clock: Clock) -> None:
    one, two, three = allowances(clock, 3, tokens_per_minute=1000)
    one.reserve(100, 800, [])
    with pytest.raises(QuotaExceededError, match="1000 tokens a minute"):
        two.reserve(100, 800, [])
    one.generated(50)
    one.close()
    two.reserve(50, 800, [])
    with pytest.raises(QuotaExceededError):
        three.reserve(1, 0, [])


def test_a_request_without_a_token_costs_none(clock: Clock) -> None:
    one, two = allowances(clock, 2, tokens_per_minute=1000)
    one.reserve(900, 100, [])
    one.close()
    two.reserve(900, 100, [])


def test_more_than_a_minutes_worth_waits_for_a_full_minute_only(clock: Clock) -> None:
    one, two = allowances(clock, 2, tokens_per_minute=600)
    one.reserve(3000, 0, [])
    with pytest.raises(QuotaExceededError) as caught:
        two.reserve(1, 0, [])
    assert caught.value.retry_after_s == pytest.approx((2400 + 1) / 10)


def test_a_refused_request_holds_nothing(clock: Clock) -> None:
    one, two = allowances(clock, 2, images=1, tokens_per_minute=10)
    with pytest.raises(QuotaExceededError):
        one.reserve(5, 5, ["cat", "dog"])
    two.reserve(5, 5, ["cow"])


def test_tenants_do_not_feel_each_other(clock: Clock) -> None:
    quotas = Quotas(clock)
    quotas.allowance("one", Limits(requests=1)).begin()
    quotas.allowance("two", Limits(requests=1)).begin()
    with pytest.raises(QuotaExceededError):
        quotas.allowance("one", Limits(requests=1)).begin()


def test_new_limits_are_in_force_while_requests_run(clock: Clock) -> None:
    quotas = Quotas(clock)
    running = quotas.allowance("acme", Limits(requests=2))
    running.begin()
    with pytest.raises(QuotaExceededError):
        quotas.allowance("acme", Limits(requests=1)).begin()
    running.close()
    quotas.allowance("acme", Limits(requests=1)).begin()


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sets(st.sampled_from("abcd"))), max_size=20),
    st.data(),
)
def test_everything_taken_comes_back(requests: list[tuple[int, int, set[str]]], data: st.DataObject) -> None:
    meter = Meter(Limits(requests=5, images=3, tokens_per_minute=200), Clock())
    bucket = meter._tokens
    for prompt, answer, images in requests:
        allowance = Allowance(meter)
        try:
            allowance.begin()
            allowance.reserve(prompt, answer, images)
        except QuotaExceededError:
            pass
        if data.draw(st.booleans()):
            allowance.close()
            allowance.close()
            assert meter.requests == 0
        assert meter.images <= 3
        allowance.close()
    assert (meter.requests, meter.images, bucket.wait_s(200)) == (0, 0, 0.0)


def test_a_bucket_never_holds_more_than_a_minute(clock: Clock) -> None:
    bucket = Bucket(60, clock)
    clock.now += 3600
    bucket.take(60)
    assert bucket.wait_s(1) == pytest.approx(1.0)
