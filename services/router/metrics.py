"""Prometheus metrics of the router; labels have few values, never names chosen by callers."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from common.metrics.build import show_build
from services.router.turnstile import Turnstile
from triptych.errors import TriptychError
from triptych.v1.types_pb2 import StageTimes, Usage

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
NS = 1e9
# The last three add up to prompt, so ratios are weighted by tokens.
TOKEN_KINDS = ("prompt", "completion", "visual", "cache_read", "cache_creation", "uncached")


class Metrics:
    """Owns a registry of its own, so that several routers can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Those that have been counted once pass several places on their way out.
        self._counted: WeakSet[TriptychError] = WeakSet()
        # Finished answers and their tokens by kind, for those who cannot scrape.
        self.totals: Counts[str] = Counts()
        self._requests = self._counter(
            "requests", "Answers by how they ended: ok, cancelled or an error's reason", "status"
        )
        self._tokens = self._counter("tokens", "Tokens of finished answers by kind", "kind")
        self._embeddings = self._counter(
            "embeddings", "Embeddings that finished answers needed: hit or miss", "outcome"
        )
        self._retries = self._counter("retries", "Requests that went on at other workers, by what was wrong", "reason")
        self._gave_up = self._counter("gave_up", "Requests not tried again after losing their workers", "reason")
        self._images = self._counter("images", "Pictures of finished answers: by occurrence, and distinct", "kind")
        text = "Answers that were completed although workers were lost on the way"
        self._rescued = Counter("triptych_router_failovers", text, registry=self.registry)
        self._shed = self._counter("shed", "Requests turned away by the queue", "reason")
        self._running = Gauge("triptych_router_running_requests", "Answers in the making", registry=self.registry)
        self._first_token = self._histogram("first_token_seconds", "From acceptance to the first token")
        self._total = self._histogram("request_seconds", "From acceptance to the end of finished answers")
        text = "Time of finished answers by stage: queue, encode, prefill, transfer, decode; some run side by side"
        self._stages = self._histogram("stage_seconds", text, "stage")
        text = "Between two tokens of an answer; of several that came together each counts its share"
        self._gaps = Histogram(
            "triptych_router_inter_token_seconds", text, buckets=GAP_SECONDS, registry=self.registry
        )
        show_build(self.registry)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one answer by how the block ends; leaving it early means that the caller left."""
        status = "cancelled"
        with self._running.track_inprogress():
            try:
                yield
                status = "ok"
            except TriptychError as error:
                status = error.reason
                self._counted.add(error)
                raise
            except Exception:
                status = "internal"
                raise
            finally:
                self._requests.labels(status).inc()

    def refused(self, error: TriptychError) -> None:
        """Count a request that was refused before it became an answer in the making; harmless when it was counted."""
        if error not in self._counted:
            self._count(error)

    def _count(self, error: TriptychError) -> None:
        self._counted.add(error)
        self._requests.labels(error.reason).inc()

    def retried(self, reason: str) -> None:
        """A request goes on at other workers."""
        self._retries.labels(reason).inc()
        self.totals["retries"] += 1

    def rescued(self) -> None:
        """A request that had gone on at other workers was answered."""
        self._rescued.inc()

    def between_tokens(self, gap_ns: int, tokens: int) -> None:
        """`tokens` tokens came together, `gap_ns` after those before."""
        for _ in range(tokens):
            self._gaps.observe(gap_ns / tokens / NS)

    def gave_up(self, reason: str) -> None:
        """A request that lost its workers was not tried again."""
        self._gave_up.labels(reason).inc()

    def shed(self, reason: str) -> None:
        """A request was turned away by the queue."""
        self._shed.labels(reason).inc()

    def queue(self, turnstile: Turnstile) -> None:
        """Show how many requests wait, and what the running ones were promised."""
        self._gauge("queued_requests", "Requests that wait for a free place", lambda: len(turnstile.queue))
        self._gauge("promised_tokens", "Tokens of KV promised to running requests", lambda: turnstile.taken)

    def finished(self, usage: Usage) -> None:
        """Add the account of a complete answer."""
        self.totals["requests"] += 1
        for kind in TOKEN_KINDS:
            count = getattr(usage, f"{kind}_tokens")
            self.totals[kind] += count
            self._tokens.labels(kind).inc(count)
        self._embeddings.labels("hit").inc(usage.embedding_hits)
        self._embeddings.labels("miss").inc(usage.embedding_misses)
        self._images.labels("all").inc(usage.images)
        self._images.labels("unique").inc(usage.unique_images)
        self.totals["embedding_hits"] += usage.embedding_hits
        self.totals["embedding_misses"] += usage.embedding_misses
        self.totals["kv_transfer_bytes"] += usage.kv_transfer_bytes
        self._observe(usage.times)

    def _observe(self, times: StageTimes) -> None:
        self._first_token.observe(times.first_token_ns / NS)
        self._total.observe(times.total_ns / NS)
        for stage in ("queue", "encode", "prefill", "transfer"):
            self._stages.labels(stage).observe(getattr(times, f"{stage}_ns") / NS)
        self._stages.labels("decode").observe((times.total_ns - times.first_token_ns) / NS)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"triptych_router_{name}", text, [label], registry=self.registry)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"triptych_router_{name}", text, registry=self.registry).set_function(value)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"triptych_router_{name}", text, labels, buckets=SECONDS, registry=self.registry)
