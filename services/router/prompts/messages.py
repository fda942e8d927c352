"""What a conversation must look like, and the pictures in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message

ROLES = ("system", "user", "assistant", "tool")
IMAGE_ROLES = ("user", "tool")
MAX_NESTING = 64
MAX_MESSAGES = 16_384
"""Messages of a conversation, and parts and calls in all of them: looking at millions keeps everybody waiting."""
MAX_ARGUMENTS = 2**20
"""Characters of the arguments of all calls: they are read while everybody waits."""
DETAILS = ("", "auto", "low", "high")


@dataclass(frozen=True)
class ImageUse:
    """One occurrence of a picture: its file digest or image id, and the request field that names it."""

    digest: str
    param: str


def check_messages(messages: Sequence[Message], max_images: int) -> list[ImageUse]:
    """The pictures in order; InvalidArgumentError naming the message or part at fault."""
    if not messages:
        raise InvalidArgumentError("messages must not be empty", param="messages")
    _check_count(messages)
    for index, message in enumerate(messages):
        _check_role(message, f"messages[{index}]")
        _check_calls(message, f"messages[{index}]")
    parts = [
        (f"messages[{index}].content[{at}]", part)
        for index, message in enumerate(messages)
        for at, part in enumerate(message.content)
    ]
    images = [(param, part) for param, part in parts if _kind(part, param) == "image"]
    check_image_count(len(images), max_images)
    return [use_of(part.image, f"{param}.image") for param, part in images]


def check_image_count(count: int, limit: int) -> None:
    """InvalidArgumentError stating both numbers when there are too many."""
    if count > limit:
        raise InvalidArgumentError(f"a request may hold {limit} images, this one has {count}", param="messages")


def check_image_role(role: str, param: str) -> None:
    """InvalidArgumentError for a picture in a message whose role must have none."""
    if role not in IMAGE_ROLES:
        message = f"{param} has the role {role}; only user and tool messages hold images"
        raise InvalidArgumentError(message, param=param)


def _check_count(messages: Sequence[Message]) -> None:
    if len(messages) > MAX_MESSAGES:
        raise InvalidArgumentError(f"at most {MAX_MESSAGES} messages are possible", param="messages")
    if sum(len(message.content) + len(message.tool_calls) for message in messages) > MAX_MESSAGES:
        raise InvalidArgumentError(f"messages: at most {MAX_MESSAGES} parts and calls are possible", param="messages")
    if sum(len(call.arguments) for message in messages for call in message.tool_calls) > MAX_ARGUMENTS:
        raise InvalidArgumentError(f"arguments of calls have at most {MAX_ARGUMENTS} characters", param="messages")


def _check_role(message: Message, param: str) -> None:
    if message.role not in ROLES:
        raise InvalidArgumentError(f"{param}: the role must be one of {', '.join(ROLES)}", param=f"{param}.role")
    if any(part.HasField("image") for part in message.content):
        check_image_role(message.role, param)


def _check_calls(message: Message, param: str) -> None:
    if message.tool_calls and message.role != "assistant":
        raise InvalidArgumentError(f"{param}: only assistant messages call functions", param=f"{param}.tool_calls")
    for index, call in enumerate(message.tool_calls):
        field = f"{param}.tool_calls[{index}].arguments"
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{field}: {error}", param=field) from error
        if not isinstance(arguments, dict) or _deeper(arguments, MAX_NESTING):
            wanted = f"a JSON object of at most {MAX_NESTING} levels"
            raise InvalidArgumentError(f"{field} is not {wanted}", param=field)


def _deeper(value: Any, limit: int) -> bool:
    """Whether a JSON value is nested deeper: templates recurse into it."""
    level = [value]
    for _ in range(limit):
        level = [item for parent in level for item in _items(parent)]
    return bool(level)


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _kind(part: ContentPart, param: str) -> str:
    kind = part.WhichOneof("part")
    if kind is None:
        raise InvalidArgumentError("a content part is a text or an image", param=param)
    return kind


def use_of(image: ImageRef, param: str) -> ImageUse:
    """One occurrence of a picture; InvalidArgumentError for a malformed digest or an unknown detail."""
    if image.detail not in DETAILS:
        raise InvalidArgumentError("detail is auto, low or high", param=f"{param}.detail")
    return ImageUse(check_digest(image.digest, f"{param}.digest"), param)
