"""How much of the shared store embeddings may take, which of them go first, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# lru: the least recently used goes, whoever needs it (SGLang's static multimodal cache).
# refcount: what a live request has leased stays, the rest goes by last use (vLLM's encoder cache manager).
Policy = Literal["lru", "refcount"]


@dataclass(frozen=True)
class Budget:
    """`max_bytes` bounds the sum of values; Redis needs some more for its own structures.

    A lease that nobody ends lasts `lease_s` seconds.
    """

    policy: Policy = "refcount"
    max_bytes: int = 2**30
    lease_s: float = 60.0

    @property
    def lease_ms(self) -> int:
        """`lease_s` as Redis wants it."""
        return round(self.lease_s * 1000)


@dataclass
class StoreCounters:
    """What happened in this process so far; `bytes` is the store's fill after the last write, of all processes."""

    hits: int = 0
    memory_hits: int = 0
    misses: int = 0
    waits: int = 0
    evictions: int = 0
    refused: int = 0
    corrupt: int = 0
    write_errors: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Account:
    """Entries and bytes that the store has now."""

    entries: int
    bytes: int
