"""Where a request stops repeating the one before it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from triptych.lint.finding import Finding
from triptych.lint.reading import Asked, Part, Picture, Said, canonical, tool_name
from triptych.lint.suspects import cut


def compare(index: int, before: Asked, now: Asked) -> Iterator[Finding]:
    """Every difference from the request before, in order; the first one carries the whole loss."""
    if not _goes_on(before, now):
        before, now = _opening(before), _opening(now)
    found = [(finding, _parts(before.messages)) for finding in _tools(index, before, now)]
    found += list(_messages(index, before.messages, now.messages))
    for number, (finding, behind) in enumerate(found):
        yield _with_loss(finding, behind) if number == 0 else finding


def _goes_on(before: Asked, now: Asked) -> bool:
    """Whether both are of one conversation: something that was said is said again."""
    old, new = ({_squeezed(said.text) for said in asked.messages if said.role != "system"} for asked in (before, now))
    return bool((old & new) - {""})


def _opening(asked: Asked) -> Asked:
    """What even a new conversation shares with others: tools and instructions."""
    said = next((at for at, each in enumerate(asked.messages) if each.role != "system"), len(asked.messages))
    return replace(asked, messages=asked.messages[:said])


def _with_loss(finding: Finding, behind: Sequence[Part]) -> Finding:
    characters = sum(len(part) for part in behind if isinstance(part, str))
    return replace(finding, lost_characters=characters, lost_images=sum(isinstance(part, Picture) for part in behind))


def _tools(index: int, before: Asked, now: Asked) -> Iterator[Finding]:
    if before.tools == now.tools:
        return
    old, new = ({canonical(tool) for tool in asked.tools} for asked in (before, now))
    names = sorted({tool_name(tool) for tool in (old ^ new)})
    if names:
        yield Finding(index, None, "tools_changed", cut(", ".join(names)))
    elif [canonical(tool) for tool in before.tools] != [canonical(tool) for tool in now.tools]:
        yield Finding(index, None, "unsorted_tools", cut(", ".join(tool_name(tool) for tool in now.tools)))
    else:
        yield Finding(index, None, "unstable_json", "tools")


def _messages(index: int, old: Sequence[Said], new: Sequence[Said]) -> Iterator[tuple[Finding, list[Part]]]:
    """Findings, each with the parts of the old request that stand behind it."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal" or i1 == len(old) or j1 == len(new):
            # What is appended, or cut off at the end, leaves a prefix.
            continue
        for number in range(min(i2 - i1, j2 - j1)):
            yield from _message(index, j1 + number, old[i1 + number :], new[j1 + number])
        if i2 - i1 > j2 - j1:
            gone = i1 + (j2 - j1)
            yield Finding(index, j2, "message_removed", cut(old[gone].text)), _parts(old[gone:])
        elif j2 - j1 > i2 - i1 and i2 < len(old):
            extra = j1 + (i2 - i1)
            yield Finding(index, extra, "message_inserted", cut(new[extra].text)), _parts(old[i2:])


def _message(index: int, number: int, rest: Sequence[Said], new: Said) -> Iterator[tuple[Finding, list[Part]]]:
    """The first difference of two messages in the same place; `rest` begins with the old one."""
    old = rest[0]
    at = next((at for at, (a, b) in enumerate(zip(old.parts, new.parts, strict=False)) if a != b), None)
    if at is None and old.role == new.role:
        at = min(len(old.parts), len(new.parts))
    kind, excerpt = _kind(old, new, at or 0)
    yield Finding(index, number, kind, cut(excerpt)), [*old.parts[at or 0 :], *_parts(rest[1:])]


def _kind(old: Said, new: Said, at: int) -> tuple[str, str]:
    """Why two messages differ, and the text at fault."""
    a, b = (said.parts[at] if at < len(said.parts) else None for said in (old, new))
    if isinstance(a, Picture) or isinstance(b, Picture):
        return _picture_kind(old, new, a, b)
    for kind, same in (("whitespace", _squeezed), ("unstable_json", canonical)):
        if old.role == new.role and same(old.text) == same(new.text):
            return kind, new.text
    kind = "system_changed" if "system" in (old.role, new.role) else "text_changed"
    return kind, _difference(a or "", b or "")


def _picture_kind(old: Said, new: Said, a: Part | None, b: Part | None) -> tuple[str, str]:
    if isinstance(a, Picture) and isinstance(b, Picture):
        if a.identity != b.identity:
            return "image_replaced", b.url
        return ("image_reencoded" if a.url != b.url else "detail_changed"), b.url
    return (
        ("image_removed", a.url) if isinstance(a, Picture) else ("image_added", b.url if isinstance(b, Picture) else "")
    )


def _difference(old: str, new: str) -> str:
    """The new text from a little before the first character that differs."""
    at = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return new[max(0, at - 12) :]


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _parts(messages: Sequence[Said]) -> list[Part]:
    return [part for said in messages for part in said.parts]
