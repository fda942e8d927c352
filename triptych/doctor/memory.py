"""Whether there is room in shared memory and in Redis. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triptych.doctor.finding import Finding
from triptych.doctor.workers import name_of
from triptych.v1.router_pb2 import WatchClusterResponse

MIB = 2**20
# The rest is for uploaded pictures, the registry, and what Redis needs itself.
EMBEDDINGS_SHARE = 0.8


def check_shared_memory(now: WatchClusterResponse) -> Iterator[Finding]:
    """Ray's object store of each encoder in the /dev/shm of its host or container."""
    for info in (worker.info for worker in now.workers if worker.info.object_store_bytes):
        has, wants = info.shared_memory_bytes // MIB, info.object_store_bytes // MIB
        if has < wants:
            fix = f"--shm-size={2 * wants}m, shm_size in compose, an emptyDir of Memory in Kubernetes"
            yield Finding("shm", name_of(info), "fix", f"/dev/shm has {has} MiB, Ray wants {wants}", fix)
        else:
            yield Finding("shm", name_of(info), "ok", f"/dev/shm has {has} MiB, Ray takes {wants}")


def check_redis(said: Mapping[str, Any], now: WatchClusterResponse | None) -> Iterator[Finding]:
    """By what `python -m common.store.condition` says, and the budget of the encoders."""
    most, policy = said["max_bytes"], said["policy"]
    if not most:
        yield _fix("has no maxmemory: it grows until the kernel ends it", "maxmemory, above the embedding budget")
    if policy == "noeviction":
        yield _fix("refuses uploads when it is full", "maxmemory-policy volatile-lru")
    if said["append_only"] or said["snapshots"]:
        yield _fix("writes to its disk, and needs memory for that", "save '' and appendonly no: all of it is a cache")
    budget = max((worker.info.embedding_budget_bytes for worker in now.workers), default=0) if now else 0
    if most and budget > most * EMBEDDINGS_SHARE:
        text = f"embeddings may take {budget // MIB} of its {most // MIB} MiB"
        yield _fix(text, "more maxmemory, or a smaller --embedding-budget of the encoders")
    size = f"{said['used_bytes'] // MIB} of {most // MIB} MiB" if most else f"{said['used_bytes'] // MIB} MiB"
    yield Finding("redis", f"Redis {said['version']}", "ok", f"answers; {size}, {policy}")


def _fix(text: str, fix: str) -> Finding:
    return Finding("redis", "Redis", "fix", text, fix)
