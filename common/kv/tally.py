"""How much KV this process has moved, which way and by which path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from common.metrics.series import Series

Direction = Literal["prefill_to_decode", "decode_to_prefill", "peer_to_prefill"]
Path = Literal["grpc", "shared_memory", "reference"]
LABELS = ("direction", "path")


class Tally:
    """Complete transfers and their bytes. `reference`: prefill computed in decode's own blocks, and nothing moved."""

    def __init__(self) -> None:
        self._transfers: Counter[tuple[str, ...]] = Counter()
        self._bytes: Counter[tuple[str, ...]] = Counter()

    def note(self, direction: Direction, path: Path, size_bytes: int) -> None:
        """One transfer is complete."""
        self._transfers[direction, path] += 1
        self._bytes[direction, path] += size_bytes

    @property
    def pushed_bytes(self) -> int:
        """Given to decode."""
        return self._of("prefill_to_decode")

    @property
    def pulled_bytes(self) -> int:
        """Taken from other workers' caches."""
        return self._of("decode_to_prefill") + self._of("peer_to_prefill")

    def series(self) -> Iterable[Series]:
        """For `/metrics`."""
        text = "Complete transfers of a prompt's KV"
        yield Series("counter", "kv_transfers", text, dict(self._transfers), LABELS)
        yield Series("counter", "kv_transfer_bytes", "Bytes of KV they moved", dict(self._bytes), LABELS)

    def _of(self, direction: Direction) -> int:
        return sum(size for (way, _), size in self._bytes.items() if way == direction)
