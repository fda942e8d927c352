"""How many replicas Ray Serve should run: by visual tokens that wait, not by requests.

Ray pickles this module by value into its controller, so it imports nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

# What a replica tells the controller, in `record_autoscaling_stats`.
PENDING_TOKENS = "pending_tokens"


def replicas_for(pending: Iterable[float], target_tokens: int) -> int:
    """Replicas for `pending` tokens of each running one; bounds and delays are Ray's."""
    return max(1, math.ceil(sum(pending) / target_tokens))


class Context(Protocol):
    """The part of Ray's `AutoscalingContext` that is used: by metric, the mean of each replica's lately."""

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """None before anything was told."""


class TokenPolicy:
    """Ray calls it about ten times a second."""

    def __init__(self, target_tokens: int) -> None:
        self._target_tokens = target_tokens

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted, and no state."""
        pending = (context.aggregated_metrics or {}).get(PENDING_TOKENS, {})
        return replicas_for(pending.values(), self._target_tokens), {}
