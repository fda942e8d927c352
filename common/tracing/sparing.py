"""Says what would otherwise be said with every request, while something is down, only every few seconds."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

EVERY_S = 10.0


class SparingLog:
    """Warnings of `log`, each text at most once in `EVERY_S` seconds; the next time with how many were left out."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._quiet_until: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def warning(self, text: str, *values: object) -> None:
        """`text` is a constant with places for `values`, as in `logging`; it decides what is the same warning."""
        now = self._clock()
        if now < self._quiet_until.get(text, now):
            self._left_out[text] += 1
            return
        self._quiet_until[text] = now + EVERY_S
        self._log.warning(text, *values)
        if left_out := self._left_out.pop(text, 0):
            self._log.warning("the same was left out %d times before", left_out)
