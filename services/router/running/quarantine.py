"""Remembers requests over which workers died, by what they ask, so that one of them cannot take down a fleet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from triptych.errors import QuarantinedError

STRIKES = 2
MOST = 1024


@dataclass
class _Record:
    expires: float = 0.0
    killed: set[str] = field(default_factory=set)


class Quarantine:
    """A request is refused for `ttl_s` seconds once `STRIKES` workers were lost while they had it.

    One worker may die of anything, and so may two when many ask the same: an answer proves the request harmless.
    `clock` is monotonic, in seconds; of too many records the oldest are forgotten.
    """

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s, self._clock = ttl_s, clock
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def __len__(self) -> int:
        self._expire()
        return len(self._records)

    def strike(self, content: bytes, killed: Collection[str]) -> None:
        """Workers (instance ids) were lost while they had the request."""
        if not killed:
            return
        self._expire()
        record = self._records.setdefault(content, _Record())
        record.killed |= set(killed)
        record.expires = self._clock() + self._ttl_s
        self._records.move_to_end(content)
        while len(self._records) > MOST:
            self._records.popitem(last=False)

    def absolve(self, content: bytes) -> None:
        """The request was answered: whatever its workers died of, it was not this."""
        self._records.pop(content, None)

    def check(self, content: bytes) -> None:
        """QuarantinedError when it must not be tried."""
        self._expire()
        record = self._records.get(content)
        if record is not None and len(record.killed) >= STRIKES:
            wait = record.expires - self._clock()
            raise QuarantinedError(
                f"{len(record.killed)} workers were lost over this request; it is not tried again for {wait:.0f} s",
                retry_after_s=wait,
            )

    def _expire(self) -> None:
        """The records are in the order in which they expire."""
        while self._records and next(iter(self._records.values())).expires <= self._clock():
            self._records.popitem(last=False)
