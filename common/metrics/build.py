"""Which version runs, as every page shows it."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Info

from common.metrics.series import PREFIX
from triptych.version import VERSION


def show_build(registry: CollectorRegistry) -> None:
    """Add `triptych_build_info`, which is always 1."""
    info = Info(f"{PREFIX}build", "Version of Triptych and of Python", registry=registry)
    info.info({"version": VERSION, "python": platform.python_version()})
