"""One language, as a request describes it, in the form that llguidance reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

from triptych.errors import InvalidArgumentError
from triptych.v1 import types_pb2

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

PARAM = "sampling.grammar"
MAX_CHARACTERS = 32 * 1024
# Bound the memory and the time that one grammar can take, when it is read and at every token.
LIMITS = LLParserLimits(max_lexer_states=20_000, max_grammar_size=200_000, verbose_errors=False)
# As Python's json.dumps and most chat templates write JSON, so that an answer in the next prompt is the same text.
WRITTEN: JsonCompileOptions = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


@dataclass(frozen=True, slots=True)
class Language:
    """`kind` is "json_schema", "regex" or "lark". `lenient` leaves out what of a schema cannot be enforced."""

    kind: str
    text: str
    lenient: bool = False

    @classmethod
    def of(cls, message: types_pb2.Grammar) -> Language:
        """From the wire; InvalidArgumentError for one without a kind, or over the limit of characters."""
        kind = message.WhichOneof("kind")
        if kind is None:
            raise InvalidArgumentError("a grammar is a json_schema, a regex or in Lark's notation", param=PARAM)
        language = cls(kind, getattr(message, kind), message.lenient)
        if len(language.text) > MAX_CHARACTERS:
            length = len(language.text)
            raise InvalidArgumentError(
                f"a grammar may have {MAX_CHARACTERS} characters, not {length}", param=f"{PARAM}.{kind}"
            )
        return language

    def schema(self) -> Any:
        """The JSON schema as an object; InvalidArgumentError when the text is no JSON object."""
        try:
            schema = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the schema is no JSON: {error}", param=f"{PARAM}.json_schema") from error
        if not isinstance(schema, dict):
            raise InvalidArgumentError("the schema is no JSON object", param=f"{PARAM}.json_schema")
        return schema

    def source(self) -> str:
        """What llguidance compiles; InvalidArgumentError when a schema is no JSON object."""
        if self.kind == "json_schema":
            return schema_source(self.schema(), self.lenient)
        return (
            LLMatcher.grammar_from_regex(self.text) if self.kind == "regex" else LLMatcher.grammar_from_lark(self.text)
        )


def schema_source(schema: dict[str, Any], lenient: bool) -> str:
    """A JSON schema for llguidance."""
    options: JsonCompileOptions = {**WRITTEN, "lenient": lenient}
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)
