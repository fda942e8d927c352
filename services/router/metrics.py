"""Prometheus metrics of the router; labels have few values, never names chosen by callers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from triptych.errors import TriptychError
from triptych.v1.types_pb2 import Usage

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
NS = 1e9
# The last three add up to prompt, so ratios are weighted by tokens.
TOKEN_KINDS = ("prompt", "completion", "visual", "cache_read", "cache_creation", "uncached")


class Metrics:
    """Owns a registry of its own, so that several routers can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Answers by how they ended: ok, cancelled or an error's reason", "status"
        )
        self._tokens = self._counter("tokens", "Tokens of finished answers by kind", "kind")
        self._embeddings = self._counter(
            "embeddings", "Embeddings that finished answers needed: hit or miss", "outcome"
        )
        self._running = Gauge("triptych_router_running_requests", "Answers in the making", registry=self.registry)
        self._first_token = self._histogram("first_token_seconds", "From acceptance to the first token")
        self._total = self._histogram("request_seconds", "From acceptance to the end of finished answers")

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
                raise
            except Exception:
                status = "internal"
                raise
            finally:
                self._requests.labels(status).inc()

    def finished(self, usage: Usage) -> None:
        """Add the account of a complete answer."""
        for kind in TOKEN_KINDS:
            self._tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))
        self._embeddings.labels("hit").inc(usage.embedding_hits)
        self._embeddings.labels("miss").inc(usage.embedding_misses)
        self._first_token.observe(usage.times.first_token_ns / NS)
        self._total.observe(usage.times.total_ns / NS)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"triptych_router_{name}", text, [label], registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"triptych_router_{name}", text, buckets=SECONDS, registry=self.registry)
