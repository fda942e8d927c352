"""How much of the shared store embeddings may take, and which of them go first."""

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


@dataclass(frozen=True)
class Account:
    """Entries and bytes that the store has now."""

    entries: int
    bytes: int
