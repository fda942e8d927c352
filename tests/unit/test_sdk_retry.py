"""How long a client waits before it tries again, and when it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych import Retry
from triptych.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    TriptychError,
    UnavailableError,
)
from triptych.retry import Tries

GONE = UnavailableError("gone")


def test_pauses_double_up_to_the_longest() -> None:
    tries = Tries(Retry(tries=6, first_pause_s=1.0, longest_pause_s=4.0), draw=lambda: 1.0)
    assert [tries.pause_s(GONE) for _ in range(5)] == [1.0, 2.0, 4.0, 4.0, 4.0]


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 8))
def test_jitter_takes_away_at_most_half(draw: float, count: int) -> None:
    retry = Retry(tries=count + 1, first_pause_s=0.5, longest_pause_s=10.0)
    drawn, whole = Tries(retry, lambda: draw), Tries(retry, lambda: 1.0)
    for _ in range(count):
        longest = whole.pause_s(GONE)
        assert longest / 2 <= drawn.pause_s(GONE) <= longest


def test_the_servers_delay_is_kept() -> None:
    assert Tries(Retry()).pause_s(ResourceExhaustedError("full", retry_after_s=7.0)) > 7.0


def test_a_delay_beyond_patience_is_the_callers_error() -> None:
    with pytest.raises(ResourceExhaustedError):
        Tries(Retry(patience_s=5.0)).pause_s(ResourceExhaustedError("full", retry_after_s=6.0))


@pytest.mark.parametrize("error", [InvalidArgumentError("no"), DeadlineExceededError("late")])
def test_what_repetition_cannot_help_is_raised_at_once(error: TriptychError) -> None:
    with pytest.raises(type(error)):
        Tries(Retry()).pause_s(error)


def test_the_last_try_is_the_last() -> None:
    tries = Tries(Retry(tries=2))
    tries.pause_s(GONE)
    with pytest.raises(UnavailableError):
        tries.pause_s(GONE)


@pytest.mark.parametrize("options", [{"tries": 0}, {"patience_s": -1.0}])
def test_senseless_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        Retry(**options)  # type: ignore[arg-type]
