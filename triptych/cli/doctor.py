"""`triptych doctor`: what is wrong with a running deployment, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.doctor import Finding, Site, examine, exit_status
from triptych.doctor.finding import Level

WIDTH = 140
MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "skipped": ("–", "dim"),
    "fix": ("✗", "bold red"),
    "unreachable": ("✗", "bold red"),
}


def run_doctor(site: Site, *, as_json: bool) -> None:
    """Print the findings; typer.Exit with status 1 when there is something to fix, 2 without a router."""
    findings = list(examine(site))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))  # noqa: T201
    else:
        console = Console()
        console.width = max(console.width, WIDTH)
        console.print(to_table(findings))
    raise typer.Exit(exit_status(findings))


def to_table(findings: Sequence[Finding]) -> Table:
    """A row a finding, and what to do in the row of what needs it."""
    table = Table(box=box.SIMPLE)
    for heading in ("", "check", "what", "found", "what to do"):
        table.add_column(heading)
    for finding in findings:
        mark, style = MARKS[finding.level]
        cells = (finding.check, finding.subject, finding.text, finding.fix)
        table.add_row(Text(mark, style), *map(Text, cells))
    return table
