"""What the accounts of finished answers add up to, and how their times are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter

from services.router.figures.spread import Spread, Spreads
from triptych.v1.types_pb2 import StageTimes, Usage

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
NS = 1e9
# The last three add up to prompt, so ratios are weighted by tokens.
TOKEN_KINDS = ("prompt", "completion", "visual", "cache_read", "cache_creation", "uncached")
STAGES = ("queue", "encode", "prefill", "transfer")


class UsageMetrics:
    """Label values are few and known, so every series is there from the start, at 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._tokens = self._counters("tokens", "Tokens of finished answers by kind", "kind", TOKEN_KINDS)
        text = "Embeddings that finished answers needed: hit or miss"
        self._embeddings = self._counters("embeddings", text, "outcome", ("hit", "miss"))
        text = "Pictures of finished answers: by occurrence, and distinct"
        self._images = self._counters("images", text, "kind", ("all", "unique"))
        self._first_token = self._spread("first_token_seconds", "From acceptance to the first token", SECONDS)
        self._total = self._spread("request_seconds", "From acceptance to the end of finished answers", SECONDS)
        text = "Time of finished answers by stage: queue, encode, prefill, transfer, decode; some run side by side"
        self._stages = {stage: Spread(SECONDS) for stage in (*STAGES, "decode")}
        self._show("stage_seconds", text, {(stage,): spread for stage, spread in self._stages.items()}, ("stage",))
        text = "Between two tokens of an answer; of several that came together each counts its share"
        self._gaps = self._spread("inter_token_seconds", text, GAP_SECONDS)

    def finished(self, usage: Usage) -> None:
        """Add the account of a complete answer."""
        for kind, counter in self._tokens.items():
            add(counter, getattr(usage, f"{kind}_tokens"))
        add(self._embeddings["hit"], usage.embedding_hits)
        add(self._embeddings["miss"], usage.embedding_misses)
        add(self._images["all"], usage.images)
        add(self._images["unique"], usage.unique_images)
        self._observe(usage.times)

    def between_tokens(self, gap_ns: int, tokens: int) -> None:
        """`tokens` tokens came together, `gap_ns` after those before."""
        self._gaps.observe(gap_ns / tokens / NS, tokens)

    def _observe(self, times: StageTimes) -> None:
        self._first_token.observe(times.first_token_ns / NS)
        self._total.observe(times.total_ns / NS)
        for stage in STAGES:
            self._stages[stage].observe(getattr(times, f"{stage}_ns") / NS)
        self._stages["decode"].observe((times.total_ns - times.first_token_ns) / NS)

    def _counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        counter = Counter(f"triptych_router_{name}", text, [label], registry=self._registry)
        return {value: counter.labels(value) for value in values}

    def _spread(self, name: str, text: str, bounds: Sequence[float]) -> Spread:
        spread = Spread(bounds)
        self._show(name, text, {(): spread})
        return spread

    def _show(
        self, name: str, text: str, spreads: Mapping[tuple[str, ...], Spread], labels: Sequence[str] = ()
    ) -> None:
        self._registry.register(Spreads(f"triptych_router_{name}", text, spreads, labels))


def add(counter: Counter, amount: int) -> None:
    """Most amounts of most requests are 0, which costs a lock, too."""
    if amount:
        counter.inc(amount)
