"""What a conversation is made of on the caller's side, and its way into the contract's messages.

A conversation is a string, or a list of parts (one user message), or a list of messages. A part is a string, an
`Image`, or a dict as the OpenAI API has it; a message is a `Message` or a dict with "role" and "content".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.digests import check_digest, file_digest
from triptych.errors import InvalidArgumentError, InvalidImageError
from triptych.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, named by the digest of its file. Without `data` it must have been uploaded before.

    `detail` is "", "auto", "low" or "high", as in the OpenAI API.
    """

    digest: str
    data: bytes | None = field(default=None, repr=False)
    detail: str = ""

    @classmethod
    def from_bytes(cls, data: bytes, detail: str = "") -> Image:
        """A picture from the bytes of its file, in any format that the server reads."""
        return cls(file_digest(data), data, detail)

    @classmethod
    def from_file(cls, path: str | Path, detail: str = "") -> Image:
        """A picture from a file; InvalidImageError when it cannot be read."""
        try:
            return cls.from_bytes(Path(path).read_bytes(), detail)
        except OSError as exc:
            raise InvalidImageError(f"cannot read {path}: {exc.strerror}") from exc

    @classmethod
    def from_data_url(cls, url: str, detail: str = "") -> Image:
        """A picture from a `data:image/...;base64,` URL; the SDK fetches no other kind."""
        head, _, body = url.partition(",")
        if not head.lower().startswith("data:image/") or not head.lower().endswith(";base64"):
            raise InvalidImageError("only data:image/...;base64 URLs are read here; download the picture first")
        try:
            return cls.from_bytes(base64.b64decode(body + "=" * (-len(body) % 4), validate=True), detail)
        except binascii.Error as exc:
            raise InvalidImageError("the data URL is not valid base64") from exc


Part = str | Image | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by the model; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; `role` is "system", "user", "assistant" or "tool".

    An assistant's turn may have called functions, a tool's turn answers one of those calls.
    """

    role: str
    content: tuple[str | Image, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


def user(*parts: str | Image) -> Message:
    """A turn of the user, in the order in which the model reads it."""
    return Message("user", parts)


def assistant(*parts: str | Image) -> Message:
    """An earlier answer."""
    return Message("assistant", parts)


def tool(call: ToolCall, *parts: str | Image) -> Message:
    """What a function gave; `call` is from the answer that called it."""
    return Message("tool", parts, tool_call_id=call.id)


def system(*parts: str | Image) -> Message:
    """Instructions that open a conversation."""
    return Message("system", parts)


# Parts and messages are not mixed in one list; saying so in types would ask every caller for annotations.
Prompt = Part | Message | Sequence[Part | Message]


def as_messages(prompt: Prompt) -> list[Message]:
    """Any accepted form of a conversation as messages; InvalidArgumentError names the piece at fault."""
    items = _listed(prompt, "prompt")
    if any(_is_message(item) for item in items):
        return [_as_message(item, f"messages[{index}]") for index, item in enumerate(items)]
    return [Message("user", _as_parts(items, "messages[0].content"))] if items else []


def to_wire(message: Message) -> types_pb2.Message:
    """The contract's form: pictures by name only."""
    return types_pb2.Message(
        role=message.role,
        content=[_part_to_wire(part) for part in message.content],
        tool_calls=[types_pb2.ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in message.tool_calls],
        tool_call_id=message.tool_call_id,
    )


def _part_to_wire(part: str | Image) -> types_pb2.ContentPart:
    if isinstance(part, str):
        return types_pb2.ContentPart(text=part)
    return types_pb2.ContentPart(image=types_pb2.ImageRef(digest=part.digest, detail=part.detail))


def _is_message(item: object) -> bool:
    return isinstance(item, Message) or (isinstance(item, Mapping) and "role" in item)


def _as_message(item: object, param: str) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
        raise InvalidArgumentError("a message is a Message or a dict with a role and a content", param=param)
    parts = _listed(item.get("content") or (), f"{param}.content")
    listed = _listed(item.get("tool_calls") or (), f"{param}.tool_calls")
    calls = tuple(_as_call(call, f"{param}.tool_calls[{at}]") for at, call in enumerate(listed))
    return Message(item["role"], _as_parts(parts, f"{param}.content"), calls, str(item.get("tool_call_id") or ""))


def _listed(value: object, param: str) -> Sequence[Any]:
    """`value`, in a list unless it is one."""
    if isinstance(value, str | Image | Message | Mapping | ToolCall):
        return [value]
    if isinstance(value, Sequence):
        return value
    raise InvalidArgumentError(f"{param} is one piece or a list of them, not {type(value).__name__}", param=param)


def _as_call(item: object, param: str) -> ToolCall:
    match item:
        case ToolCall():
            return item
        case {"function": {"name": str(name), "arguments": str(arguments)}, **rest}:
            return ToolCall(str(rest.get("id") or ""), name, arguments)
    raise InvalidArgumentError("a call is a ToolCall, or a dict as the OpenAI API has it", param=param)


def _as_parts(items: Sequence[Any], param: str) -> tuple[str | Image, ...]:
    return tuple(_as_part(item, f"{param}[{index}]") for index, item in enumerate(items))


def _as_part(item: object, param: str) -> str | Image:
    match item:
        case str() | Image():
            return item
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image", "image": Image() as image}:
            return image
        case {"type": "image", "image": str(digest)}:
            return Image(check_digest(digest, param))
        case {"type": "image_url", "image_url": {"url": str(url), **rest}}:
            return Image.from_data_url(url, str(rest.get("detail") or ""))
    raise InvalidArgumentError("a part is a string, an Image, or a dict of type text, image or image_url", param=param)
