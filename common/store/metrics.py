"""The embedding store as this process sees it, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.metrics.series import Series, Values, counter, counters, gauge
from common.store.budget import Policy


def read_series(seen: Mapping[str, float], reader: str) -> Iterable[Series]:
    """What readers and writers have; `seen` are fields of `StoreCounters`, `reader` is a stage."""
    found = {"store": seen["hits"], "memory": seen["memory_hits"], "none": seen["misses"]}
    lookups: Values = {(reader, where): value for where, value in found.items()}
    text = "Embeddings looked for, by who looked and where they were found"
    yield Series("counter", "store_lookups", text, lookups, ("stage", "found"))
    yield counters("store_read_bytes", "Bytes of good embeddings read", "stage", {reader: seen["read_bytes"]})
    text = "Embeddings that were damaged, foreign or of the wrong number of rows"
    yield counters("store_corrupt", text, "stage", {reader: seen["corrupt"]})


def write_series(seen: Mapping[str, float], policy: Policy) -> Iterable[Series]:
    """What only writers have."""
    yield counter("store_written_bytes", "Bytes of embeddings written", seen["written_bytes"])
    yield counter("store_write_errors", "Embeddings that could not be written", seen["write_errors"])
    yield counter("store_refused", "Embeddings for which the store had no room", seen["refused"])
    yield counters("store_evictions", "Embeddings evicted to make room", "policy", {policy: seen["evictions"]})
    yield counter("store_waits", "Times that a computation by somebody else was waited for", seen["waits"])
    yield gauge("store_bytes", "Bytes of all embeddings in the store after the last write", seen["bytes"])
