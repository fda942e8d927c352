"""What the accounts of finished answers add up to, and how their times are spread."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

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
        self._first_token = self._histogram("first_token_seconds", "From acceptance to the first token")
        self._total = self._histogram("request_seconds", "From acceptance to the end of finished answers")
        text = "Time of finished answers by stage: queue, encode, prefill, transfer, decode; some run side by side"
        stages = self._histogram("stage_seconds", text, ("stage",))
        self._stages = {stage: stages.labels(stage) for stage in (*STAGES, "decode")}
        text = "Between two tokens of an answer; of several that came together each counts its share"
        self._gaps = self._histogram("inter_token_seconds", text, buckets=GAP_SECONDS)

    def finished(self, usage: Usage) -> None:
        """Add the account of a complete answer."""
        for kind, counter in self._tokens.items():
            counter.inc(getattr(usage, f"{kind}_tokens"))
        self._embeddings["hit"].inc(usage.embedding_hits)
        self._embeddings["miss"].inc(usage.embedding_misses)
        self._images["all"].inc(usage.images)
        self._images["unique"].inc(usage.unique_images)
        self._observe(usage.times)

    def between_tokens(self, gap_ns: int, tokens: int) -> None:
        """`tokens` tokens came together, `gap_ns` after those before."""
        for _ in range(tokens):
            self._gaps.observe(gap_ns / tokens / NS)

    def _observe(self, times: StageTimes) -> None:
        self._first_token.observe(times.first_token_ns / NS)
        self._total.observe(times.total_ns / NS)
        for stage in STAGES:
            self._stages[stage].observe(getattr(times, f"{stage}_ns") / NS)
        self._stages["decode"].observe((times.total_ns - times.first_token_ns) / NS)

    def _counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        counter = Counter(f"triptych_router_{name}", text, [label], registry=self._registry)
        return {value: counter.labels(value) for value in values}

    def _histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        return Histogram(f"triptych_router_{name}", text, labels, buckets=buckets, registry=self._registry)
