"""Accepted work in visual tokens, and the refusal of more than fits."""

from __future__ import annotations

from collections.abc import Sequence

from services.encoder.work import Task
from triptych.errors import ResourceExhaustedError, UnavailableError
from triptych.v1 import worker_pb2

RETRY_AFTER_S = 1.0


class Load:
    """Counts calls and tokens between `admit` and `finish`; awaits nothing."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.calls = 0
        self.tokens = 0
        self.draining = False

    def admit(self, tasks: Sequence[Task]) -> None:
        """Take a call's pictures. A call alone is always taken; otherwise the sum of tokens is bounded."""
        if self.draining:
            raise UnavailableError("this encoder is draining", retry_after_s=RETRY_AFTER_S)
        tokens = sum(task.tokens for task in tasks)
        if self.calls and self.tokens + tokens > self._max_tokens:
            raise ResourceExhaustedError(
                f"{self.tokens} visual tokens wait to be encoded; the limit is {self._max_tokens}",
                retry_after_s=RETRY_AFTER_S,
            )
        self.calls += 1
        self.tokens += tokens

    def done(self, task: Task) -> None:
        """A picture is ready, or will not become so."""
        self.tokens -= task.tokens

    def finish(self) -> None:
        """The call has ended; each of its pictures was `done`."""
        self.calls -= 1

    def response(self) -> worker_pb2.GetLoadResponse:
        """For GetLoad. Replicas take pictures at once, so calls run and none waits here."""
        return worker_pb2.GetLoadResponse(running_requests=self.calls, pending_tokens=self.tokens)
