"""Prometheus metrics of the router; labels have few values, never names chosen by callers."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from common.metrics.build import show_build
from services.router.figures.usage_metrics import TOKEN_KINDS, UsageMetrics
from services.router.waiting.turnstile import Turnstile
from triptych.errors import TriptychError
from triptych.v1.types_pb2 import Usage

NAMED = ("embedding_hits", "embedding_misses", "kv_transfer_bytes")


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
        self._retries = self._counter("retries", "Requests that went on at other workers, by what was wrong", "reason")
        self._gave_up = self._counter("gave_up", "Requests not tried again after losing their workers", "reason")
        text = "Answers that were completed although workers were lost on the way"
        self._rescued = Counter("triptych_router_failovers", text, registry=self.registry)
        text = "Tokens of prompts that were sent to prefill workers because these had announced them as cached"
        self._matched = Counter("triptych_router_matched_tokens", text, registry=self.registry)
        text = "Requests turned away by the queue, and connections beyond their bound"
        self._shed = self._counter("shed", text, "reason")
        self._running = Gauge("triptych_router_running_requests", "Answers in the making", registry=self.registry)
        self._usages = UsageMetrics(self.registry)
        self.between_tokens = self._usages.between_tokens
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
            self._counted.add(error)
            self._requests.labels(error.reason).inc()

    def retried(self, reason: str) -> None:
        """A request goes on at other workers."""
        self._retries.labels(reason).inc()
        self.totals["retries"] += 1

    def matched(self, tokens: int) -> None:
        """A prefill worker was chosen that has announced the first `tokens` tokens of the prompt."""
        self._matched.inc(tokens)

    def rescued(self) -> None:
        """A request that had gone on at other workers was answered."""
        self._rescued.inc()

    def gave_up(self, reason: str) -> None:
        """A request that lost its workers was not tried again."""
        self._gave_up.labels(reason).inc()

    def shed(self, reason: str) -> None:
        """A request was turned away by the queue, or a connection before it could make one."""
        self._shed.labels(reason).inc()

    def queue(self, turnstile: Turnstile) -> None:
        """Show how many requests wait, and what the running ones were promised."""
        self._gauge("queued_requests", "Requests that wait for a free place", lambda: len(turnstile.queue))
        self._gauge("promised_tokens", "Tokens of KV promised to running requests", lambda: turnstile.taken)

    def finished(self, usage: Usage) -> None:
        """Add the account of a complete answer."""
        self.totals["requests"] += 1
        for kind in TOKEN_KINDS:
            self.totals[kind] += getattr(usage, f"{kind}_tokens")
        for name in NAMED:
            self.totals[name] += getattr(usage, name)
        self._usages.finished(usage)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"triptych_router_{name}", text, [label], registry=self.registry)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"triptych_router_{name}", text, registry=self.registry).set_function(value)
