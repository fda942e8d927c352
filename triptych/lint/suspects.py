"""What in a single request will break the prefix of the next one, most likely."""

from __future__ import annotations

import re
from collections.abc import Iterator

from triptych.lint.finding import Finding
from triptych.lint.reading import Asked, tool_name

_DATE = r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{4}"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
PATTERNS = {
    "timestamp": re.compile(
        rf"(?:{_DATE})[T ,]+\d{{1,2}}:\d{{2}}(?::\d{{2}})?\S*"
        r"|\b\d{1,2}:\d{2}(?::\d{2})?\s*(?:[ap]m\b|utc|gmt|[+-]\d{2}:?\d{2})"
        r"|\b\d{1,2}:\d{2}:\d{2}\b|\b1[5-9]\d{8}(?:\d{3})?\b",
        re.IGNORECASE,
    ),
    "date": re.compile(
        rf"{_DATE}|\b\d{{1,2}}(?:st|nd|rd|th)? {_MONTH} \d{{4}}|\b{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}",
        re.IGNORECASE,
    ),
    "random_id": re.compile(
        r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
        r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{16,}\b"
        r"|\b(?=[0-9A-HJKMNP-TV-Z]*\d)[0-7][0-9A-HJKMNP-TV-Z]{25}\b"
        r"|\b(?:request|trace|session|correlation|span|run)[ _-]?id\s*[:=]\s*\S+",
        re.IGNORECASE,
    ),
    "counter": re.compile(
        r"\b(?:request|turn|message|call|attempt|iteration|step)\s*(?:#|no\.?|number|count(?:er)?)?\s*[:=#]?\s*\d+\b(?!\s*(?:tokens|words|%))",
        re.IGNORECASE,
    ),
}
LONGEST_EXCERPT = 60


def suspects(index: int, asked: Asked) -> Iterator[Finding]:
    """Times, ids and counters in instructions and tools, and tools in an order that came by chance.

    Other messages may hold what they like: they are written once, and then repeated as they are.
    """
    for number, said in enumerate(asked.messages):
        if said.role == "system":
            yield from _in_text(index, number, said.text)
    for tool in asked.tools:
        yield from _in_text(index, None, tool)
    names = [tool_name(tool) for tool in asked.tools]
    if names != sorted(names):
        yield Finding(index, None, "unsorted_tools", cut(", ".join(names)))


def _in_text(index: int, message: int | None, text: str) -> Iterator[Finding]:
    """One finding a kind. What one pattern took is hidden from the next, so that a time is not a date as well."""
    for kind, pattern in PATTERNS.items():
        if found := pattern.search(text):
            yield Finding(index, message, kind, cut(found.group()))
        text = pattern.sub(" ", text)


def cut(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_EXCERPT else f"{line[: LONGEST_EXCERPT - 1]}…"
