"""Options of a request that need more than their name: functions, and the language of the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import ToolChoice
from triptych.v1.types_pb2 import Grammar, Tool

_MODES = {"auto": ToolChoice.MODE_UNSPECIFIED, "none": ToolChoice.MODE_NONE, "required": ToolChoice.MODE_REQUIRED}
_GRAMMARS = ("json_schema", "regex", "lark")


def take_tools(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of a GenerateRequest from the options `tools`, `tool_choice` and `parallel_tool_calls`, taken out."""
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(given.pop("tools", ()))]
    choice = given.pop("tool_choice", "auto")
    single = not given.pop("parallel_tool_calls", True)
    if choice in _MODES:
        return {"tools": tools, "tool_choice": ToolChoice(mode=_MODES[choice], single=single)}
    return {"tools": tools, "tool_choice": ToolChoice(name=choice, single=single)}


def take_grammar(given: dict[str, Any]) -> Grammar | None:
    """The grammar in the options, taken out; InvalidArgumentError for more than one."""
    found = {name: given.pop(name) for name in _GRAMMARS if name in given}
    if len(found) > 1:
        raise InvalidArgumentError(f"an answer has one grammar, not {' and '.join(found)}")
    if not found:
        return None
    (name, value), grammar = found.popitem(), Grammar()
    setattr(grammar, name, _text(value))
    return grammar


def _tool(tool: object, param: str) -> Tool:
    match tool:
        case Tool():
            return tool
        case {"type": "function", "function": Mapping() as function}:
            return _tool(function, param)
        case {"name": str(name), **rest}:
            parameters = _text(rest.get("parameters") or "")
            return Tool(
                name=name,
                description=str(rest.get("description") or ""),
                parameters=parameters,
                strict=bool(rest.get("strict")),
            )
    raise InvalidArgumentError("a tool is a Tool, or a dict as the OpenAI API has it", param=param)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
