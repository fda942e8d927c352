"""What one request's span says about its decoding: when the first token came, and how many there were."""

from __future__ import annotations

from common.engine.sampler import SampledToken
from common.tracing import Span


class Progress:
    """Told of every event of a job."""

    def __init__(self, current: Span) -> None:
        self._span = current
        self.tokens = 0

    def note(self, event: object) -> None:
        """Count tokens; the first one, which prefill computed, is an event of the span."""
        if isinstance(event, SampledToken):
            if not self.tokens:
                self._span.add_event("first token")
            self.tokens += 1

    def close(self) -> None:
        """The stream has ended, however."""
        self._span.set_attribute("tokens", self.tokens)
