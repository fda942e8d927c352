"""The functions of a request: what may be offered to the model, and the grammar of calls that must happen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from common.grammar.language import PARAM, WRITTEN
from services.router.caller import Caller
from services.router.grammars import Grammars
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import GenerateRequest, ToolChoice
from triptych.v1.types_pb2 import Grammar, Tool

MAX_TOOLS = 128
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANY_OBJECT = '{"type": "object"}'


def offered(request: GenerateRequest) -> Sequence[Tool]:
    """The functions that the model is told of, by name: the order in which a client lists them changes no prompt."""
    if request.tool_choice.mode == ToolChoice.MODE_NONE and not request.tool_choice.name:
        return ()
    return sorted(request.tools, key=lambda tool: tool.name)


def describe(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The functions as chat templates read them, the keys of every schema in order."""
    return [{"type": "function", "function": _describe(tool)} for tool in tools]


async def check_tools(request: GenerateRequest, supported: bool, grammars: Grammars, caller: Caller) -> None:
    """InvalidArgumentError for functions that are malformed, and for any where the model's template knows none."""
    tools = offered(request)
    if not tools and (request.tool_choice.mode == ToolChoice.MODE_REQUIRED or request.tool_choice.name):
        raise InvalidArgumentError("a call is required, but there are no tools", param="tool_choice")
    if tools and not supported:
        raise InvalidArgumentError("tools are not supported: this model's chat template has none", param="tools")
    if len(request.tools) > MAX_TOOLS:
        raise InvalidArgumentError(f"at most {MAX_TOOLS} tools are possible, not {len(request.tools)}", param="tools")
    for index, tool in enumerate(request.tools):
        await _check_tool(tool, f"tools[{index}]", grammars, caller)
    _check_names(request)


def answer_grammar(request: GenerateRequest) -> Grammar | None:
    """The language of the answer, calls included; None where the model may say anything.

    InvalidArgumentError where a grammar and calls cannot be had together.
    """
    given = request.sampling.grammar if request.sampling.HasField("grammar") else None
    choice = request.tool_choice
    required = bool(choice.name) or choice.mode == ToolChoice.MODE_REQUIRED
    tools = [tool for tool in offered(request) if choice.name in ("", tool.name)]
    if given is None or not tools:
        return _calls(tools, _single(choice)) if required else given
    if required:
        raise InvalidArgumentError("a grammar is not possible where a call is required", param=PARAM)
    if given.WhichOneof("kind") != "json_schema":
        raise InvalidArgumentError("of grammars only a JSON schema is possible beside tools", param=PARAM)
    answer = f"answer: %json {_schema(given.json_schema, given.lenient)}"
    return Grammar(lark=f"{_calls(tools, _single(choice), 'calls').lark}\nstart: answer | calls\n{answer}")


def _single(choice: ToolChoice) -> bool:
    return choice.single or bool(choice.name)


def _calls(tools: Sequence[Tool], single: bool, rule: str = "start") -> Grammar:
    more = "" if single else ' ("\\n" call)*'
    return Grammar(lark="\n".join([f"{rule}: call{more}", *_rules(tools)]))


def _rules(tools: Sequence[Tool]) -> Iterator[str]:
    """One rule a function. Its schema stands by itself, so that references in it find their targets."""
    yield "call: " + " | ".join(f"call_{at}" for at in range(len(tools)))
    for at, tool in enumerate(tools):
        head = json.dumps(f'{OPEN}\n{{"name": "{tool.name}", "arguments": ')
        tail = json.dumps(f"}}\n{CLOSE}")
        yield f"call_{at}: {head} arguments_{at} {tail}"
        yield f"arguments_{at}: %json {_schema(tool.parameters or _ANY_OBJECT, not tool.strict)}"


def _schema(text: str, lenient: bool) -> str:
    return json.dumps(json.loads(text) | {"x-guidance": {**WRITTEN, "lenient": lenient}})


def _describe(tool: Tool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name}
    if tool.description:
        described["description"] = tool.description
    return described | {"parameters": _in_order(json.loads(tool.parameters or _ANY_OBJECT))}


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


async def _check_tool(tool: Tool, param: str, grammars: Grammars, caller: Caller) -> None:
    if not _NAME.fullmatch(tool.name):
        rule = "letters, digits, underscores and dashes, at most 64"
        raise InvalidArgumentError(f"the name of a function has {rule}", param=f"{param}.name")
    if tool.parameters:
        grammar = Grammar(json_schema=tool.parameters, lenient=not tool.strict)
        await grammars.check(grammar, caller, f"{param}.parameters")


def _check_names(request: GenerateRequest) -> None:
    names = [tool.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise InvalidArgumentError("two tools have the same name", param="tools")
    if request.tool_choice.name and request.tool_choice.name not in names:
        raise InvalidArgumentError(f"no tool is named {request.tool_choice.name!r}", param="tool_choice")
