"""`triptych lint-prompt`: what in requests would break the prefix cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.cli.door import Door
from triptych.client import Client
from triptych.errors import ConfigError, InvalidArgumentError
from triptych.lint import Finding, count_tokens, lint, read_requests
from triptych.lint.pixels import identities
from triptych.lint.reading import picture_urls

WIDTH = 160


def run_lint(source: str, door: Door | None, *, as_json: bool) -> None:
    """Print the findings; typer.Exit with status 1 when there are any. `door` leads to a router that counts tokens."""
    requests = read_requests(_read(source))
    urls = {url for request in requests for url in picture_urls(request)}
    findings = lint(requests, identities(urls))
    if door is not None and findings:
        with door.client() as client:
            findings = count_tokens(requests, findings, _counter(client))
    if as_json:
        typer.echo(json.dumps([asdict(finding) | {"hint": finding.hint} for finding in findings], indent=2))
    else:
        _show(findings, len(requests))
    if findings:
        raise typer.Exit(1)


def _read(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {source}: {getattr(error, 'strerror', None) or 'it is no text'}") from error


def _counter(client: Client) -> Callable[[Sequence[Any]], int | None]:
    def tokens(messages: Sequence[Any]) -> int | None:
        try:
            return len(client.tokenize(messages).token_ids)
        except InvalidArgumentError:
            # Something that only another server understands, for example a picture by URL.
            return None

    return tokens


def _show(findings: Sequence[Finding], count: int) -> None:
    console = Console()
    console.width = max(console.width, WIDTH)
    if not findings:
        console.print(f"{count} request(s), nothing that breaks a prefix", highlight=False)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("request", "message", "kind", "lost", "found", "hint"):
        table.add_column(name)
    for finding in findings:
        table.add_row(*map(Text, _cells(finding)))
    console.print(table)


def _cells(finding: Finding) -> list[str]:
    message = "tools" if finding.message is None else str(finding.message)
    return [str(finding.request), message, finding.kind, loss(finding), finding.excerpt, finding.hint]


def loss(finding: Finding) -> str:
    """What is computed again: tokens where they were counted, else characters and pictures."""
    if finding.lost_tokens is not None:
        return f"{finding.lost_tokens} tokens"
    pictures = f", {finding.lost_images} picture(s)" if finding.lost_images else ""
    return f"{finding.lost_characters} characters{pictures}" if finding.lost_characters or finding.lost_images else "-"
