"""Tokens and requests in flight per worker, as this router knows them."""

from __future__ import annotations

from collections import Counter

from triptych.errors import InternalError


class Booking:
    """A share of a worker's load; released once, releasing again is harmless."""

    def __init__(self, ledger: Ledger, instance_id: str, tokens: int) -> None:
        self._ledger, self._instance_id, self._tokens = ledger, instance_id, tokens
        self._held = True

    def release(self) -> None:
        """Take the tokens off the worker's load."""
        if self._held:
            self._held = False
            self._ledger.remove(self._instance_id, self._tokens)


class Ledger:
    """Books work on workers and tells their load."""

    def __init__(self) -> None:
        self._tokens: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()

    def load(self, instance_id: str) -> int:
        """Tokens in flight on a worker."""
        return self._tokens[instance_id]

    def count(self, instance_id: str) -> int:
        """Bookings on a worker."""
        return self._requests[instance_id]

    @property
    def total(self) -> int:
        """Bookings on all workers; 0 when nothing runs."""
        return self._requests.total()

    def book(self, instance_id: str, tokens: int) -> Booking:
        """Add `tokens` to a worker's load until the booking is released."""
        self._tokens[instance_id] += tokens
        self._requests[instance_id] += 1
        return Booking(self, instance_id, tokens)

    def remove(self, instance_id: str, tokens: int) -> None:
        """For `Booking`: forget workers without load, they may be gone for good."""
        self._tokens[instance_id] -= tokens
        self._requests[instance_id] -= 1
        if self._requests[instance_id] == 0:
            del self._tokens[instance_id], self._requests[instance_id]

    def validate(self) -> None:
        """InternalError when a load is negative, or there is one without a request."""
        if any(tokens < 0 for tokens in self._tokens.values()) or set(self._tokens) != set(self._requests):
            raise InternalError("the loads of workers and their requests do not agree")
