"""Messages and functions of OpenAI's requests in the form that all interfaces share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from services.router.http.schema import ChatMessage, ChatRequest, ImagePart, RefusalPart, TextPart
from services.router.http.tool_schema import CallSpec, NamedTool, ToolSpec
from triptych.v1.router_pb2 import ToolChoice
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message, Tool, ToolCall

_MODES = {
    None: ToolChoice.MODE_UNSPECIFIED,
    "auto": ToolChoice.MODE_UNSPECIFIED,
    "none": ToolChoice.MODE_NONE,
    "required": ToolChoice.MODE_REQUIRED,
}


def to_messages(messages: Sequence[ChatMessage], digests: Sequence[str]) -> list[Message]:
    """Messages with their pictures named by `digests`, one an occurrence."""
    names = iter(digests)
    return [_message(message, names) for message in messages]


def to_tools(tools: Sequence[ToolSpec] | None) -> list[Tool]:
    """The functions on offer."""
    return [_tool(tool) for tool in tools or ()]


def to_choice(request: ChatRequest) -> ToolChoice:
    """Whether functions are called."""
    choice, single = request.tool_choice, request.parallel_tool_calls is False
    if isinstance(choice, NamedTool):
        return ToolChoice(name=choice.function.name, single=single)
    return ToolChoice(mode=_MODES[choice], single=single)


def _message(message: ChatMessage, names: Iterator[str]) -> Message:
    # OpenAI renamed the system role; templates of open models know the old name.
    role = "system" if message.role == "developer" else message.role
    return Message(
        role=role,
        content=[_part(part, names) for part in message.content],
        tool_calls=[_call(call) for call in message.tool_calls or ()],
        tool_call_id=message.tool_call_id or "",
    )


def _part(part: TextPart | ImagePart | RefusalPart, names: Iterator[str]) -> ContentPart:
    if part.type == "text":
        return ContentPart(text=part.text)
    if part.type == "refusal":
        return ContentPart(text=part.refusal)
    return ContentPart(image=ImageRef(digest=next(names), detail=part.image_url.detail or ""))


def _call(call: CallSpec) -> ToolCall:
    # No arguments at all is how some clients write an empty object.
    return ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments or "{}")


def _tool(tool: ToolSpec) -> Tool:
    function = tool.function
    parameters = "" if function.parameters is None else json.dumps(function.parameters)
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=parameters,
        strict=bool(function.strict),
    )
