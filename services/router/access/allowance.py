"""What one request takes of its tenant's quota."""

from __future__ import annotations

from collections.abc import Collection

from services.router.access.quota import Clock, Limits, Meter


class Allowance:
    """What one request takes of its tenant's quota; closed once it has ended, however it ended.

    Tokens are taken for the longest answer possible and given back for what was not generated.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open = False
        self._images: frozenset[str] = frozenset()
        self._reserved = self._prompt = self._generated = 0

    def begin(self) -> None:
        """Start the request; QuotaExceededError when the tenant has too many."""
        if not self._open:
            self._meter.begin()
            self._open = True

    def reserve(self, prompt_tokens: int, answer_tokens: int, images: Collection[str]) -> None:
        """Before any work: the tokens it may need and its pictures by name. QuotaExceededError over the quota."""
        distinct = frozenset(images)
        self._meter.take(prompt_tokens + answer_tokens, distinct)
        self._reserved, self._prompt, self._images = prompt_tokens + answer_tokens, prompt_tokens, distinct

    def generated(self, tokens: int) -> None:
        """So many tokens more were generated."""
        self._generated += tokens

    def close(self) -> None:
        """Give back what is left; twice is harmless. A request that got no token costs none."""
        used = self._prompt + self._generated if self._generated else 0
        self._meter.give_back(self._reserved - used, self._images)
        self._reserved = self._prompt = self._generated = 0
        self._images = frozenset()
        if self._open:
            self._open = False
            self._meter.end()


def unlimited() -> Allowance:
    """For callers without a quota."""
    return Allowance(Meter(Limits(), lambda: 0.0))


class Quotas:
    """The meters of all tenants that have asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[str, Meter] = {}

    def allowance(self, tenant: str, limits: Limits) -> Allowance:
        """For one request of `tenant`, whose limits are `limits` from now on."""
        meter = self._meters.setdefault(tenant, Meter(limits, self._clock))
        if meter.limits != limits:
            meter.apply(limits)
        return Allowance(meter)
