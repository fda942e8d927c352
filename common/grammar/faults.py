"""Finds what is wrong with a grammar, and where in a JSON schema it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from common.grammar.deep import on_deep_stack
from common.grammar.language import LIMITS, Language, schema_source

SEARCH_S = 1.0
"""How long the place of a fault is looked for; after that the part found by then must do."""
# Keywords whose value is a schema, a list of them, or an object of them. Definitions first: others refer to them.
_NESTED = (
    *("$defs", "definitions", "properties", "patternProperties", "items", "prefixItems", "additionalProperties"),
    *("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "contains", "propertyNames"),
)
_NAMED = frozenset({"$defs", "definitions", "properties", "patternProperties"})


@dataclass(frozen=True, slots=True)
class Fault:
    """`path` leads to the part at fault, from the schema's root, for example "properties.age"; "" for the whole."""

    path: str
    message: str


def find_fault(language: Language) -> Fault | None:
    """What keeps a grammar from being enforced; InvalidArgumentError when a schema is no JSON object."""
    if language.kind != "json_schema":
        source = language.source()
        message = on_deep_stack(lambda: _error(source))
        return Fault("", message) if message else None
    return on_deep_stack(_Search(language.schema(), language.lenient).run)


class _Search:
    """Descends to the smallest part of a schema that is wrong by itself. llguidance says what is wrong, not where."""

    def __init__(self, schema: dict[str, Any], lenient: bool) -> None:
        self._schema, self._lenient = schema, lenient
        self._shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        self._until = time.monotonic() + SEARCH_S

    def run(self) -> Fault | None:
        message = _error(schema_source(self._schema, self._lenient))
        if not message:
            return None
        fault, part = Fault("", message), self._schema
        while found := self._deeper(part, fault.path):
            fault, part = found
        return fault

    def _deeper(self, part: dict[str, Any], path: str) -> tuple[Fault, dict[str, Any]] | None:
        for name, child in _children(part):
            if time.monotonic() > self._until:
                return None
            if message := _error(schema_source(self._shared | child, self._lenient)):
                return Fault(f"{path}.{name}" if path else name, message), child
        return None


def _children(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly inside one, with their place."""
    for keyword in _NESTED:
        value = part.get(keyword)
        if isinstance(value, dict) and keyword in _NAMED:
            yield from ((f"{keyword}.{name}", child) for name, child in value.items() if isinstance(child, dict))
        elif isinstance(value, dict):
            yield keyword, value
        elif isinstance(value, list):
            yield from ((f"{keyword}[{at}]", child) for at, child in enumerate(value) if isinstance(child, dict))


def _error(source: str) -> str:
    """The complaint of llguidance in one line, "" when there is none."""
    wrong, messages = LLMatcher.validate_grammar_with_warnings(source, limits=LIMITS)
    return " ".join(" ".join(messages).split()) if wrong else ""
