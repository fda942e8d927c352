"""What an examination says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skipped", "fix", "unreachable"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` is what to do; empty when there is nothing.

    `unreachable` is the router alone: without it nothing else can be looked at.
    """

    check: str
    subject: str
    level: Level
    text: str
    fix: str = ""


def exit_status(findings: Iterable[Finding]) -> int:
    """0: nothing to do; 1: something to fix; 2: the router cannot be reached."""
    levels = {finding.level for finding in findings}
    return 2 if "unreachable" in levels else 1 if "fix" in levels else 0
