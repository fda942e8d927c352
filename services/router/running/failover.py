"""Whether a request that lost a worker is tried elsewhere. Decides without I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.router.job import Job
from services.router.running.budget import RetryBudget
from services.router.running.quarantine import Quarantine
from triptych.errors import (
    FailedPreconditionError,
    TriptychError,
    UnavailableError,
    WrongInstanceError,
)

log = logging.getLogger(__name__)
RETRY_AFTER_S = 1.0
Count = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """What went wrong with one attempt: the error, at which stage, and whose connection broke (instance ids)."""

    error: TriptychError
    stage: str
    lost: frozenset[str]

    @property
    def reason(self) -> str:
        """One word for the metrics."""
        if self.lost:
            return "lost"
        return "stale" if isinstance(self.error, FailedPreconditionError) else "unavailable"


class Failover:
    """The rules of repetition: `attempts` for a request, a budget for all, none for what kills workers.

    `retried` and `refused` count by reason.
    """

    def __init__(
        self, budget: RetryBudget, quarantine: Quarantine, attempts: int, retried: Count, refused: Count
    ) -> None:
        self._budget, self._quarantine, self._attempts = budget, quarantine, attempts
        self._retried, self._refused = retried, refused

    def begin(self, job: Job) -> None:
        """One answer to a request is about to start; QuarantinedError when it must not."""
        # Usually nothing is in quarantine, and the digest of a long prompt is not free.
        if len(self._quarantine):
            self._quarantine.check(job.content)
        if job.sampling.choice_index == 0:
            self._budget.deposit()

    def finished(self, job: Job) -> None:
        """A request was answered."""
        if len(self._quarantine):
            self._quarantine.absolve(job.content)

    def judge(self, job: Job, failure: Failure, attempts: int) -> None:
        """Return when the request may be tried once more; raise what the client shall see when not."""
        self._quarantine.strike(job.content, failure.lost)
        self._quarantine.check(job.content)
        if attempts >= self._attempts:
            self._refuse("attempts", failure)
        if not self._budget.take():
            self._refuse("budget", failure)
        self._retried(failure.reason)
        log.warning("request %s goes on elsewhere (%s): %s", job.request_id, failure.stage, failure.error.message)

    def _refuse(self, why: str, failure: Failure) -> None:
        self._refused(why)
        log.warning("not tried again (%s): %s: %s", why, failure.stage, failure.error.message)
        # Workers' own words may name addresses that are nobody's business.
        message = f"the {failure.stage} stage of the request failed, and trying elsewhere did not help; try again later"
        raise UnavailableError(message, retry_after_s=RETRY_AFTER_S) from failure.error


def can_move(error: TriptychError) -> bool:
    """Whether another worker could do what this one did not: it is gone, is leaving, or is not who was meant.

    A ticket that is no longer valid is the same: the decode worker that issued it has lost the request.
    """
    return isinstance(error, UnavailableError | WrongInstanceError) or type(error) is FailedPreconditionError
