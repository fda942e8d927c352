"""Finds stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.errors import InvalidArgumentError

MAX_STOPS = 16


def check_stops(stops: Sequence[str], param: str = "stop") -> tuple[str, ...]:
    """The stop strings as a tuple; InvalidArgumentError for too many or an empty one."""
    if len(stops) > MAX_STOPS:
        raise InvalidArgumentError(f"at most {MAX_STOPS} stop strings are possible, not {len(stops)}", param=param)
    if not all(stops):
        raise InvalidArgumentError("a stop string must not be empty", param=param)
    return tuple(stops)


class StopMatcher:
    """Releases text as soon as it can no longer be part of a stop string.

    The answer ends before the stop string whose last character comes first, the longest of several that end there:
    a rule that does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take in more text, give out what is certain; nothing after `matched` is set."""
        if self.matched is not None:
            return ""
        self._held += text
        if found := self._find():
            end, start = found
            self.matched, certain, self._held = self._held[start:end], self._held[:start], ""
            return certain
        keep = self._possible_start()
        certain, self._held = self._held[:keep], self._held[keep:]
        return certain

    def flush(self) -> str:
        """The text held back, once no more can come."""
        held, self._held = self._held, ""
        return held

    def _find(self) -> tuple[int, int] | None:
        starts = ((self._held.find(stop), stop) for stop in self._stops)
        return min(((start + len(stop), start) for start, stop in starts if start >= 0), default=None)

    def _possible_start(self) -> int:
        """Index from which the held text could grow into a stop string; its length when it cannot."""
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        first = max(0, len(self._held) - longest)
        for start in range(first, len(self._held)):
            if any(stop.startswith(self._held[start:]) for stop in self._stops):
                return start
        return len(self._held)
