"""Messages and functions in the form in which chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.router.prompts.tokenizer import Chat, Tools
from triptych.v1.types_pb2 import ContentPart, Message, ToolCall

Table = Mapping[int, str]
"""Characters to be replaced, as `str.translate` reads it."""


def to_chat(messages: Sequence[Message], tables: Sequence[Table] | None = None) -> Chat:
    """Messages as templates read them; `tables` (one a message) translate characters of what callers wrote.

    Calls are named by their order: the names that clients use are random, and would make every prompt a new one.
    """
    names = _call_names(messages)
    pairs = zip(messages, tables or [{}] * len(messages), strict=True)
    return [_message(message, table, names) for message, table in pairs]


def translated(value: Any, table: Table) -> Any:
    """A JSON value with the characters of all its strings translated, keys included."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, dict):
        return {key.translate(table): translated(item, table) for key, item in value.items()}
    return [translated(item, table) for item in value] if isinstance(value, list) else value


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def texts_of(message: Message) -> list[str]:
    """Everything in a message that its author wrote, in order."""
    texts = [part.text for part in message.content if part.HasField("text")]
    for call in message.tool_calls:
        texts += [call.name, *strings(json.loads(call.arguments))]
    return texts


def texts_of_tools(tools: Tools) -> list[str]:
    """Everything in the functions that their author wrote."""
    return list(strings(list(tools)))


def _call_names(messages: Sequence[Message]) -> dict[str, str]:
    given = [name for message in messages for name in (*(c.id for c in message.tool_calls), message.tool_call_id)]
    return {name: f"call{index:05}" for index, name in enumerate(dict.fromkeys(filter(None, given)))}


def _message(message: Message, table: Table, names: Mapping[str, str]) -> dict[str, Any]:
    form: dict[str, Any] = {"role": message.role, "content": [_part(part, table) for part in message.content]}
    if message.tool_calls:
        form["tool_calls"] = [_call(call, table, names) for call in message.tool_calls]
    if message.tool_call_id:
        form["tool_call_id"] = names[message.tool_call_id]
    return form


def _call(call: ToolCall, table: Table, names: Mapping[str, str]) -> dict[str, Any]:
    # In the order in which the model wrote them: what it said must read the same in the next prompt.
    arguments = translated(json.loads(call.arguments), table)
    function = {"name": call.name.translate(table), "arguments": arguments}
    return {"id": names.get(call.id, ""), "type": "function", "function": function}


def _part(part: ContentPart, table: Table) -> dict[str, Any]:
    if part.HasField("image"):
        return {"type": "image"}
    return {"type": "text", "text": part.text.translate(table)}
