"""Lints requests in the order in which they are sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from triptych.errors import InvalidArgumentError
from triptych.lint.comparing import compare
from triptych.lint.finding import Finding
from triptych.lint.reading import Asked, read_asked
from triptych.lint.suspects import suspects


def lint(requests: Sequence[Any], identities: Mapping[str, str] | None = None) -> list[Finding]:
    """What breaks the prefix in each request, or will in the next one.

    `identities` gives equal names to picture URLs with equal pixels. A request is compared with the last one of the
    same `session_id`. What is suspicious is reported where it first occurs, not again wherever it is repeated.
    """
    asked = [read_asked(request, identities or {}) for request in requests]
    compared = [each for before, now in pairs(requests) for each in compare(now, asked[before], asked[now])]
    return sorted([*_suspects(asked), *compared], key=lambda finding: finding.request)


def pairs(requests: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Indices of requests that follow each other."""
    last: dict[str, int] = {}
    for index, request in enumerate(requests):
        session = str(request.get("session_id") or "")
        if session in last:
            yield last[session], index
        last[session] = index


def count_tokens(
    requests: Sequence[Any], findings: Sequence[Finding], tokens: Callable[[Sequence[Any]], int | None]
) -> list[Finding]:
    """The findings with their losses in tokens; `tokens` counts a prompt of messages, None where it cannot."""
    before = {now: earlier for earlier, now in pairs(requests)}
    return [_counted(finding, requests, before, tokens) for finding in findings]


def _counted(
    finding: Finding,
    requests: Sequence[Any],
    before: Mapping[int, int],
    tokens: Callable[[Sequence[Any]], int | None],
) -> Finding:
    if not (finding.lost_characters or finding.lost_images):
        return finding
    messages = requests[before[finding.request]]["messages"]
    kept = messages[: finding.message or 0]
    whole, rest = tokens(messages), tokens(kept) if kept else 0
    return finding if whole is None or rest is None else replace(finding, lost_tokens=max(0, whole - rest))


def _suspects(asked: Sequence[Asked]) -> Iterator[Finding]:
    seen: set[tuple[int | None, str, str]] = set()
    for index, request in enumerate(asked):
        for finding in suspects(index, request):
            mark = (finding.message, finding.kind, finding.excerpt)
            if mark not in seen:
                seen.add(mark)
                yield finding


def read_requests(text: str) -> list[Any]:
    """One JSON request, a JSON list of them, or one a line; InvalidArgumentError names the line at fault."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return [_line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"line {number} is no JSON: {error}") from error
