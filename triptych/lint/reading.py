"""Requests as the linter sees them: tools in canonical spelling, messages as roles and parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture by its URL; `identity` is equal for equal pixels where those could be compared."""

    url: str
    detail: str
    identity: str


Part = str | Picture
# Deeper than any request that means something, and far from where JSON parsers give up.
MOST_LEVELS = 100


@dataclass(frozen=True, slots=True)
class Said:
    """One message; calls of tools count as text."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def pictures(self) -> list[Picture]:
        """Its pictures in order."""
        return [part for part in self.parts if isinstance(part, Picture)]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: each tool as it was spelled, and the messages."""

    tools: tuple[str, ...]
    messages: tuple[Said, ...]


def read_asked(request: Any, identities: Mapping[str, str]) -> Asked:
    """The request; InvalidArgumentError when it is none. `identities` names the pixels of picture URLs."""
    if not isinstance(request, Mapping) or not isinstance(request.get("messages"), Sequence):
        raise InvalidArgumentError("a request is a JSON object with a list of messages", param="messages")
    if _is_deeper(request, MOST_LEVELS):
        raise InvalidArgumentError(f"a request is nested in at most {MOST_LEVELS} levels", param="messages")
    tools = tuple(json.dumps(tool, ensure_ascii=False) for tool in _items(request.get("tools"), "tools"))
    return Asked(tools, tuple(_said(message, identities) for message in request["messages"]))


def picture_urls(request: Any) -> set[str]:
    """The URLs of all pictures."""
    return {picture.url for said in read_asked(request, {}).messages for picture in said.pictures}


def canonical(text: str) -> str:
    """JSON in one spelling; the text itself when it is none."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def tool_name(tool: str) -> str:
    """The function's name, or the tool's type."""
    found = json.loads(tool)
    function = found.get("function", found) if isinstance(found, dict) else {}
    return str(function.get("name", found)) if isinstance(function, dict) else str(found)


def _said(message: Any, identities: Mapping[str, str]) -> Said:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidArgumentError("a message is a JSON object with a role", param="messages")
    content = message.get("content") or []
    items = [content] if isinstance(content, str) else _items(content, "content")
    parts: list[Part] = [item if isinstance(item, str) else _part(item, identities) for item in items]
    parts += [json.dumps(call, ensure_ascii=False) for call in _items(message.get("tool_calls"), "tool_calls")]
    role = "system" if message["role"] == "developer" else message["role"]
    return Said(role, tuple(parts))


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [inner for outer in layer for inner in _inside(outer)]
    return bool(layer)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _items(value: Any, param: str) -> Sequence[Any]:
    """A list that may be left out or null."""
    if not isinstance(value, list | None):
        raise InvalidArgumentError(f"{param} is a list", param=param)
    return value or ()


def _part(part: Any, identities: Mapping[str, str]) -> Part:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url), **rest}}:
            return Picture(url, str(rest.get("detail") or ""), identities.get(url, url))
    return json.dumps(part, ensure_ascii=False)
