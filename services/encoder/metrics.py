"""The encoder for `/metrics`: the sums over replicas, and what the front itself holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.metrics.series import Series, counter, counters, gauge
from common.store.budget import Policy
from common.store.metrics import read_series, write_series
from services.encoder.book import ReplicaBook
from services.encoder.load import Load

NS = 1e9


def encoder_series(book: ReplicaBook, load: Load, policy: Policy) -> Iterable[Series]:
    """Everything of one fleet."""
    yield from read_series(book.totals, "encoder")
    yield from write_series(book.totals, policy)
    yield from _work(book.totals)
    yield from _replicas(book)
    yield gauge("encoder_pending_tokens", "Visual tokens of accepted pictures", load.tokens)
    yield gauge("encoder_calls", "Encode calls being answered", load.calls)


def _work(totals: Mapping[str, int]) -> Iterable[Series]:
    yield counter("encoder_pictures", "Pictures encoded", totals["pictures"])
    yield counter("encoder_visual_tokens", "Visual tokens encoded", totals["visual_tokens"])
    yield counter("encoder_batches", "Batches that the tower computed", totals["batches"])
    yield counter("encoder_seconds", "Time that towers computed", totals["encode_ns"] / NS)
    yield counter("encoder_failures", "Batches that failed on the tower", totals["failures"])
    direct = {reason: totals[f"direct_{reason}"] for reason in ("down", "failed", "full")}
    text = "Embeddings handed over past the store: it was down, writing failed, or it was full"
    yield counters("encoder_direct", text, "reason", direct)


def _replicas(book: ReplicaBook) -> Iterable[Series]:
    replicas = book.replicas()
    yield gauge("encoder_replicas", "Replicas that report", len(replicas))
    weights = sum(info.weights_bytes for info in replicas)
    yield gauge("encoder_weights_bytes", "Bytes of weights, of all replicas", weights)
    memory = sum(info.memory_bytes for info in replicas)
    yield gauge("encoder_memory_bytes", "Memory in use, of all replicas", memory)
