"""`response_format`: the language of the answer."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from services.router.http.model import Model
from triptych.v1.types_pb2 import Grammar


class TextFormat(Model):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Model):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Model):
    """A JSON schema; with `strict` one of which every keyword can be enforced."""

    name: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class SchemaFormat(Model):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class GrammarFormat(Model):
    """Text of a grammar, in the form in which OpenAI's custom tools have it."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


Format = Annotated[TextFormat | ObjectFormat | SchemaFormat | GrammarFormat, Field(discriminator="type")]


def grammar_of(wanted: Format | None) -> Grammar | None:
    """The grammar; None where any text will do."""
    match wanted:
        case ObjectFormat():
            return Grammar(json_schema='{"type": "object"}')
        case SchemaFormat(json_schema=named):
            schema = json.dumps({"type": "object"} if named.schema_ is None else named.schema_)
            return Grammar(json_schema=schema, lenient=not named.strict)
        case GrammarFormat(syntax=syntax, definition=text):
            return Grammar(regex=text) if syntax == "regex" else Grammar(lark=text)
    return None
