"""What a replica has done since its start, and what it has in work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from common.store.counters import StoreCounters


@dataclass
class EncoderCounters:
    """`direct_*` are embeddings that went past the store, by reason: it was down, it failed, or it had no room."""

    pictures: int = 0
    visual_tokens: int = 0
    batches: int = 0
    encode_ns: int = 0
    failures: int = 0
    direct_down: int = 0
    direct_failed: int = 0
    direct_full: int = 0


class Pending:
    """Visual tokens of pictures that are being prepared, wait for a batch, or are in one."""

    def __init__(self) -> None:
        self.tokens = 0

    @contextlib.contextmanager
    def of(self, tokens: int) -> Iterator[None]:
        """Count them while the block runs, however it ends."""
        self.tokens += tokens
        try:
            yield
        finally:
            self.tokens -= tokens


# The rest of `StoreCounters` says how things stand, and has no sum over replicas.
STANDING = frozenset({"bytes", "failed_writes", "corrupt_reads"})
NAMES = tuple(field.name for kind in (StoreCounters, EncoderCounters) for field in fields(kind))


def counted(store: StoreCounters, encoder: EncoderCounters) -> dict[str, int]:
    """All counters by name, for the front."""
    return {**asdict(store), **asdict(encoder)}
