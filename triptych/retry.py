"""When a call is tried again: decided from the error, the tries so far and the time left, without waiting itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from triptych.errors import DeadlineExceededError, InvalidArgumentError, TriptychError


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently. All times are in seconds; `Retry(tries=1)` never tries again.

    Pauses double from `first_pause_s` to `longest_pause_s`; each is drawn evenly between half of it and all of it, so
    that clients which failed together do not come back together. Where the server says when to come back, the pause
    is at least that long; a server that asks for more than `patience_s` is not waited for.
    """

    tries: int = 4
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        if self.tries < 1 or min(self.first_pause_s, self.longest_pause_s, self.patience_s) < 0:
            raise InvalidArgumentError("retry: at least one try, and no negative pause", param="retry")


class Tries:
    """The tries of one call. `draw` gives an even random number in [0, 1)."""

    def __init__(self, retry: Retry, draw: Callable[[], float] = random.random) -> None:
        self._retry, self._draw = retry, draw
        self._failed = 0

    def pause_s(self, error: TriptychError, left_s: float | None = None) -> float:
        """Seconds to wait before the next try; raises `error` when there is none, or none within `left_s`."""
        self._failed += 1
        # A deadline is over for every further try as well.
        if not error.retryable or isinstance(error, DeadlineExceededError) or self._failed >= self._retry.tries:
            raise error
        pause = self._backoff_s() + (error.retry_after_s or 0.0)
        if (error.retry_after_s or 0.0) > self._retry.patience_s or (left_s is not None and pause >= left_s):
            raise error
        return pause

    def _backoff_s(self) -> float:
        whole = min(self._retry.longest_pause_s, self._retry.first_pause_s * 2.0 ** (self._failed - 1))
        return whole * (1 + self._draw()) / 2
