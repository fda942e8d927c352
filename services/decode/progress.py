"""How one request fared on a decode worker: for its span, and for the metrics."""

from __future__ import annotations

import time

from common.engine.sampler import SampledToken
from common.kv.reservations import Reservation
from common.metrics.stages import Part, StageTimes
from common.tracing import Span


class Progress:
    """Told of every event of a job: it waits for blocks (queue), then for its prompt's KV (transfer), then it runs."""

    def __init__(self, current: Span, times: StageTimes) -> None:
        self._span, self._times = current, times
        self._since_ns = time.monotonic_ns()
        self._tokens = 0

    def note(self, event: object) -> None:
        """A reservation, a token or the finish. The first token, which prefill computed, is an event of the span."""
        if isinstance(event, Reservation):
            self._part("queue")
        elif not isinstance(event, SampledToken):
            self._part("run")
        else:
            if not self._tokens:
                self._part("transfer")
                self._span.add_event("first token")
            self._tokens += 1

    def close(self) -> None:
        """The stream has ended, however."""
        self._span.set_attribute("tokens", self._tokens)

    def _part(self, part: Part) -> None:
        now = time.monotonic_ns()
        self._times.note("decode", part, now - self._since_ns)
        self._since_ns = now
