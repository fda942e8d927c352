"""Is it quicker to move KV or to compute it? Decided from what was measured here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

WEIGHT = 0.2
"""Share of the newest measurement in the average."""

FADING = 0.05
"""How much better a fetch is thought of each time it is declined: one slow fetch must not be the last one ever."""


@dataclass(slots=True)
class Rate:
    """Exponentially weighted units per second; None before the first measurement."""

    per_second: float | None = None

    def note(self, units: float, seconds: float) -> None:
        """Take in a measurement."""
        if units <= 0 or seconds <= 0:
            return
        new = units / seconds
        self.per_second = new if self.per_second is None else (1 - WEIGHT) * self.per_second + WEIGHT * new

    def fade(self) -> None:
        """Believe a little less in a slow measurement that is getting old."""
        if self.per_second is not None:
            self.per_second *= 1 + FADING

    def seconds(self, units: float) -> float | None:
        """Estimated time for `units`."""
        return None if self.per_second is None else units / self.per_second


@dataclass(slots=True)
class Rates:
    """Tokens computed and bytes fetched per second on this worker, and the setting that may overrule them."""

    pull: Literal["auto", "always", "never"] = "auto"
    compute: Rate = field(default_factory=Rate)
    fetch: Rate = field(default_factory=Rate)

    def worth_fetching(self, tokens: int, size_bytes: int) -> bool:
        """True if fetching is expected to be quicker, or if one of the rates is not known yet.

        Each refusal brings the next trial nearer: a path ten times too slow is tried again after 48 of them.
        """
        if self.pull != "auto":
            return self.pull == "always"
        computing, fetching = self.compute.seconds(tokens), self.fetch.seconds(size_bytes)
        worth = computing is None or fetching is None or fetching < computing
        if not worth:
            self.fetch.fade()
        return worth
