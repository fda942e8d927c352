"""How fast requests are served now, from those that ended lately: what waiting times are computed from."""

from __future__ import annotations

from collections import deque

WINDOW = 128
HORIZON_S = 30.0
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0
SMOOTHING = 0.1


class Pace:
    """Costs are tokens of KV, times are seconds on any monotonic clock."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._held_per_token = 0.0

    def note(self, cost: int, held_s: float, now: float) -> None:
        """A request of `cost` ended after holding its place for `held_s`."""
        self._ended.append((now, cost))
        each = held_s / max(1, cost)
        known = self._held_per_token or each
        self._held_per_token = known + SMOOTHING * (each - known)

    def rate(self, now: float) -> float | None:
        """Tokens of KV set free in a second; None when too little has ended lately to say."""
        ended = [(at, cost) for at, cost in self._ended if now - at <= HORIZON_S]
        if len(ended) < 2 or now <= ended[0][0]:
            return None
        return sum(cost for _, cost in ended[1:]) / (now - ended[0][0])

    def wait_s(self, cost_ahead: int, now: float) -> float:
        """How long it takes until `cost_ahead` was served; 0 when nothing is known."""
        rate = self.rate(now)
        return cost_ahead / rate if rate else 0.0

    def service_s(self, cost: int) -> float:
        """How long a request of `cost` holds its place, as far as known."""
        return self._held_per_token * cost

    def retry_s(self, cost_ahead: int, now: float) -> float:
        """When to come back, told to those turned away."""
        return min(MOST_RETRY_S, max(LEAST_RETRY_S, self.wait_s(cost_ahead, now)))
