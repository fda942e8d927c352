"""What a tenant uses, measured against what it may use. Awaits nothing; time is injected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from triptych.errors import InternalError, QuotaExceededError

Clock = Callable[[], float]
# When a running request will end is not known.
RETRY_IN_FLIGHT_S = 1.0


@dataclass(frozen=True)
class Limits:
    """Of one tenant; None is no limit. `requests` and `images` (distinct pictures) are in flight at the same time."""

    requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    images: int | None = None


class Bucket:
    """Refills evenly and holds one minute's worth, as a token bucket; None is bottomless."""

    def __init__(self, per_minute: int | None, clock: Clock) -> None:
        self.per_minute, self._clock = per_minute, clock
        self._level = float(per_minute or 0)
        self._at = clock()

    def wait_s(self, amount: int) -> float:
        """Seconds until `amount` is there. For more than a minute's worth: until full, then it goes into debt."""
        if self.per_minute is None:
            return 0.0
        self._refill(self.per_minute)
        missing = min(amount, self.per_minute) - self._level
        # Who waits as long as they were told must not fail by a rounding error.
        return missing * 60 / self.per_minute if missing > 1e-6 else 0.0

    def take(self, amount: int) -> None:
        """Use `amount`, or give it back when it is negative."""
        if self.per_minute is not None:
            self._refill(self.per_minute)
            self._level = min(self._level - amount, self.per_minute)

    def _refill(self, per_minute: int) -> None:
        now = self._clock()
        self._level = min(float(per_minute), self._level + (now - self._at) * per_minute / 60)
        self._at = now


class Meter:
    """What one tenant uses now. `begin` and `take` raise QuotaExceededError, and have then taken nothing."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._clock = clock
        self.limits = limits
        self.requests = 0
        self._images: Counter[str] = Counter()
        self._starts = Bucket(limits.requests_per_minute, clock)
        self._tokens = Bucket(limits.tokens_per_minute, clock)

    @property
    def images(self) -> int:
        """Distinct pictures in flight."""
        return len(self._images)

    def apply(self, limits: Limits) -> None:
        """New limits from now on; what runs goes on."""
        if limits.requests_per_minute != self._starts.per_minute:
            self._starts = Bucket(limits.requests_per_minute, self._clock)
        if limits.tokens_per_minute != self._tokens.per_minute:
            self._tokens = Bucket(limits.tokens_per_minute, self._clock)
        self.limits = limits

    def begin(self) -> None:
        """One request more."""
        limit = self.limits.requests
        if limit is not None and self.requests >= limit:
            raise _exceeded(f"{limit} requests at the same time", RETRY_IN_FLIGHT_S)
        if wait := self._starts.wait_s(1):
            raise _exceeded(f"{self._starts.per_minute} requests a minute", wait)
        self._starts.take(1)
        self.requests += 1

    def end(self) -> None:
        """One request less."""
        self.requests -= 1
        if self.requests < 0:
            raise InternalError("a request ended twice")

    def take(self, tokens: int, images: Collection[str]) -> None:
        """Tokens and distinct pictures of one request, both or neither."""
        limit = self.limits.images
        if limit is not None and len(self._images.keys() | set(images)) > limit:
            raise _exceeded(f"{limit} different images at the same time", RETRY_IN_FLIGHT_S)
        if wait := self._tokens.wait_s(tokens):
            raise _exceeded(f"{self._tokens.per_minute} tokens a minute", wait)
        self._tokens.take(tokens)
        self._images.update(set(images))

    def give_back(self, tokens: int, images: Collection[str]) -> None:
        """Tokens that were not used after all, and pictures that are no longer in flight."""
        self._tokens.take(-tokens)
        self._images -= Counter(set(images))


def _exceeded(what: str, wait_s: float) -> QuotaExceededError:
    return QuotaExceededError(f"this API key's tenant may have {what}", retry_after_s=wait_s)
