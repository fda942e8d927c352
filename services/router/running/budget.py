"""How many repetitions all requests together may cost: repeating must not double the load of a cluster that fails."""

from __future__ import annotations

from collections.abc import Callable

SHARE = 0.2
PER_SECOND = 1.0
MOST = 100.0


class RetryBudget:
    """A bucket of tokens: each request puts in a fifth, a second one, a repetition takes one out.

    As in Finagle. `clock` is monotonic, in seconds. A router that has just started may repeat a few times at once.
    """

    def __init__(self, clock: Callable[[], float], start: float = 10.0) -> None:
        self._clock, self._tokens = clock, start
        self._at = clock()

    def deposit(self) -> None:
        """A request has arrived."""
        self._add(SHARE)

    def take(self) -> bool:
        """Whether one more repetition is possible; it is then paid for."""
        self._add(0.0)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _add(self, amount: float) -> None:
        now = self._clock()
        self._tokens = min(MOST, self._tokens + amount + (now - self._at) * PER_SECOND)
        self._at = now
