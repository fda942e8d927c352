"""What all request bodies have in common: strict types, tolerated extra fields, errors that name the field."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.errors import InvalidArgumentError, PayloadTooLargeError

MAX_VALUES = 2**19
"""Commas and brackets of a body. Each stands for a value that takes tens of times the memory of its text."""
Count = Annotated[int, Field(ge=0, lt=2**32)]


class Model(BaseModel):
    """Fields we do not know are standard ones of another version, or of no consequence here.

    Types are strict: `"5"` and `true` are no numbers, so a mistake is refused rather than guessed at.
    """

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), strict=True)


Body = TypeVar("Body", bound=Model)


def parse_body(kind: type[Body], body: bytes) -> Body:
    """The request; InvalidArgumentError naming the field at fault, PayloadTooLargeError for too many values.

    Blocking where the body is large.
    """
    if sum(map(body.count, (b",", b"{", b"["))) > MAX_VALUES:
        raise PayloadTooLargeError(f"the request body has more than {MAX_VALUES} commas and brackets")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = _param(first["loc"])
        raise InvalidArgumentError(f"{param or 'body'}: {first['msg']}", param=param or None) from None


def _param(loc: tuple[int | str, ...]) -> str:
    """The field's path as clients write it, without the names of alternatives that pydantic puts between."""
    path = ""
    for index, step in enumerate(loc):
        tag = (index >= 2 and loc[index - 2] == "content") or (index == 1 and loc[0] == "response_format")
        if isinstance(step, int):
            path += f"[{step}]"
        elif not tag and step not in ("str", "int") and "[" not in step and not step[0].isupper():
            path += f".{step}" if path else step
    return path
