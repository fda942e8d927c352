"""What the replicas have reported: who is there, and the sum of what all have done, the dead included."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.encoder.counters import NAMES, STANDING
from triptych.v1.encoder_pb2 import ReportReplicaRequest
from triptych.v1.worker_pb2 import ReplicaInfo

REPORT_EVERY_S = 1.0
SILENCE_S = 5.0
# A replica that was only frozen reports again with its old counters, which must not count twice.
FORGET_S = 3600.0


@dataclass(frozen=True)
class _Last:
    info: ReplicaInfo
    counters: Mapping[str, int]
    at: float


class ReplicaBook:
    """Reports in, sums out; awaits nothing. Totals never fall, whatever replicas come and go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, _Last] = {}
        self._totals: Counter[str] = Counter(dict.fromkeys(NAMES, 0))

    def take(self, report: ReportReplicaRequest) -> None:
        """Take in one report; names that are no counters of ours are ignored."""
        name, counters = report.replica.replica_id, {key: report.counters[key] for key in NAMES}
        before = self._last[name].counters if name in self._last else dict.fromkeys(NAMES, 0)
        for key in set(NAMES) - STANDING:
            self._totals[key] += max(0, counters[key] - before[key])
        if counters["bytes"] != before["bytes"]:
            # Whoever wrote last knows the store's fill; the others repeat what they once saw.
            self._totals["bytes"] = counters["bytes"]
        self._last[name] = _Last(report.replica, counters, self._clock())
        self._forget()

    def replicas(self) -> list[ReplicaInfo]:
        """Those heard of within `SILENCE_S`, in a stable order."""
        since = self._clock() - SILENCE_S
        alive = (last.info for last in self._last.values() if last.at >= since)
        return sorted(alive, key=lambda info: info.replica_id)

    def degraded(self) -> list[str]:
        """The replicas' complaints, each once."""
        return list(dict.fromkeys(sentence for info in self.replicas() for sentence in info.degraded))

    @property
    def totals(self) -> Mapping[str, int]:
        """Sums by name since this process started."""
        return self._totals

    def _forget(self) -> None:
        since = self._clock() - FORGET_S
        self._last = {name: last for name, last in self._last.items() if last.at >= since}
