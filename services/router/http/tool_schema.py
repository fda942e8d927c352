"""Functions in a request: those that may be called, and those that were."""

from __future__ import annotations

from typing import Any, Literal

from services.router.http.model import Model


class FunctionSpec(Model):
    """What a function is for and what it takes; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(Model):
    """A function that may be called."""

    type: Literal["function"]
    function: FunctionSpec


class FunctionName(Model):
    """One function."""

    name: str


class NamedTool(Model):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class FunctionCall(Model):
    """A function with its arguments, a JSON object as text."""

    name: str
    arguments: str = "{}"


class CallSpec(Model):
    """A call in an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
