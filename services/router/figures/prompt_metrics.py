"""Tokens of prompts by where their KV came from and by what kind of request they belong to."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from services.router.figures.breakdown import LABELS, Combinations, Values, breakdown
from services.router.figures.usage_metrics import add
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import Usage

# They add up to the prompt, always.
KINDS = ("cache_read", "cache_creation", "uncached")


class PromptMetrics:
    """Two counters with the same labels, so that ratios and means can be had for any of them."""

    def __init__(self, registry: CollectorRegistry, revision: Callable[[], str]) -> None:
        self._revision, self._known = revision, Combinations()
        text = "Tokens of prompts of finished answers by where their KV came from, and by what was asked"
        self._tokens = Counter("triptych_router_prompt_tokens", text, ["kind", *LABELS], registry=registry)
        text = "Finished answers by what was asked"
        self._prompts = Counter("triptych_router_prompts", text, LABELS, registry=registry)
        self._children: dict[Values, tuple[Counter, ...]] = {}

    def finished(self, request: GenerateRequest, usage: Usage) -> None:
        """Add one finished request with its account, the first divergence included."""
        values = self._known.admit(breakdown(request, usage, self._revision()))
        prompts, *tokens = self._of(values)
        prompts.inc()
        for kind, counter in zip(KINDS, tokens, strict=True):
            add(counter, getattr(usage, f"{kind}_tokens"))

    def _of(self, values: Values) -> tuple[Counter, ...]:
        if values not in self._children:
            tokens = [self._tokens.labels(kind, *values) for kind in KINDS]
            self._children[values] = (self._prompts.labels(*values), *tokens)
        return self._children[values]
