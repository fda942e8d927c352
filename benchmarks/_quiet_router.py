"""`python -m benchmarks._quiet_router FLAGS`: a router that keeps no account of anything, for `observability_cost`.

It answers the same and leaves out metrics, usage records, the history behind `triptych explain`, and spans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common.rpc.main import service_main
from common.tracing import NO_SPAN
from services.router import generation
from services.router.figures.account import Account
from services.router.figures.metrics import Metrics
from services.router.figures.prompt_metrics import PromptMetrics
from services.router.figures.usage_metrics import UsageMetrics
from services.router.history.history import History
from services.router.running import attempt, encoding, pipeline
from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from triptych.v1.types_pb2 import Usage


@contextmanager
def _nothing(*args: Any, **named: Any) -> Iterator[Any]:
    yield NO_SPAN


def _ignore(*args: Any, **named: Any) -> None:
    pass


def _silence() -> None:
    counted = ("finished", "retried", "shed", "gave_up", "rescued", "refused", "matched")
    marks = ("encode_began", "encoded", "prefill_opened", "prefilled")
    silent = [(PromptMetrics, ["finished"]), (History, ["finished"]), (UsageMetrics, ["between_tokens"])]
    for owner, names in (*silent, (generation, ["_log", "enter"]), (Metrics, counted), (Account, marks)):
        for name in names:
            setattr(owner, name, _ignore)
    for owner, name in ((generation, "held"), (generation, "span"), (pipeline, "span"), (encoding, "span")):
        setattr(owner, name, _nothing)
    for owner, name, value in (
        (generation, "asked", {}),
        (generation, "answered", {}),
        (attempt, "begin", NO_SPAN),
        (attempt, "outgoing", ()),
        (Account, "usage", Usage()),
    ):
        setattr(owner, name, lambda *args, value=value, **named: value)
    Metrics.request = _nothing  # type: ignore[method-assign]


if __name__ == "__main__":
    _silence()
    sys.exit(service_main("router", RouterSettings, RouterProcess))
