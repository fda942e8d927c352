"""How long work waits, computes and moves in each stage of a process."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Histogram

from common.metrics.series import PREFIX

Stage = Literal["encoder", "prefill", "decode"]
Part = Literal["queue", "run", "transfer"]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
NS = 1e9


class StageTimes:
    """One histogram for all stages and parts; a process with several stages has one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Time of one piece of work in a stage: waiting (queue), computing (run), moving (transfer)"
        self._seconds = Histogram(f"{PREFIX}stage_seconds", text, ["stage", "part"], buckets=SECONDS, registry=registry)

    def note(self, stage: Stage, part: Part, duration_ns: int) -> None:
        """One piece of work took so long."""
        self._seconds.labels(stage, part).observe(max(0, duration_ns) / NS)
