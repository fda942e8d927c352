"""A language-side worker for `/metrics`: its pool, and the requests of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.engine.prefix_cache import PrefixCache
from common.metrics.series import Series, Values, counters, gauges
from triptych.v1.worker_pb2 import GetLoadResponse

Loads = Mapping[str, GetLoadResponse]


def worker_series(cache: PrefixCache, loads: Loads) -> Iterable[Series]:
    """Blocks of the pool, which the stages share, and `loads` by stage name."""
    blocks = {"used": cache.num_in_use, "cached": cache.num_cached, "free": cache.num_free - cache.num_cached}
    yield gauges("kv_blocks", "KV blocks of the pool by state; those cached can be had, too", "state", blocks)
    yield Series("gauge", "worker_requests", "Requests by stage and state", _requests(loads), ("stage", "state"))
    pending = {stage: load.pending_tokens for stage, load in loads.items()}
    yield gauges("worker_pending_tokens", "Tokens not computed yet", "stage", pending)
    preempted = {stage: load.preemptions for stage, load in loads.items()}
    yield counters("worker_preemptions", "Requests parked because others needed their blocks", "stage", preempted)


def _requests(loads: Loads) -> Values:
    values: dict[tuple[str, ...], float] = {}
    for stage, load in loads.items():
        values[stage, "waiting"] = load.waiting_requests
        values[stage, "running"] = load.running_requests
    return values
