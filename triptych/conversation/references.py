"""Image references: history keeps the name and the description of a picture, and only the tail the picture itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from triptych.conversation.log import Description, Log, last_user, pictures_in
from triptych.conversation.policy import Need, Policy, Writer
from triptych.messages import Image, Message, user

REQUEST = "Describe this image in one or two sentences, with every detail that later questions may be about."
# Longer ones name no picture.
_NUMBER = r"\d{1,6}(?!\d)"
_MENTION = re.compile(rf"\bimages? ({_NUMBER}(?:(?:, | and |, and | or ){_NUMBER})*)", re.IGNORECASE)
DIGITS = 12


class ImageReferences(Policy):
    """Pictures are numbered by their first occurrence and described once, when they come.

    In the history each one is a text, `[image 2, 3f9a0c12b4de: a red star on white]`. The last turn of the user, and
    the results of functions after it, have their pictures behind the references; older ones that the turn mentions
    ("image 2") follow at its end. So what was sent is repeated up to the first picture of the last turn, and visual
    tokens never pile up.

    `describe=False` leaves the descriptions out, and the requests for them.
    """

    name = "image-references/1"

    def __init__(self, describe: bool = True, description_tokens: int = 64, writer: Writer | None = None) -> None:
        self.describe, self.description_tokens, self.writer = describe, description_tokens, writer

    def need(self, log: Log) -> Need | None:
        """The description of a picture that has none."""
        missing = [image for image in log.pictures if image.digest not in log.descriptions] if self.describe else []
        if not missing:
            return None
        return Need((user(missing[0], REQUEST),), Description(missing[0].digest), self.description_tokens)

    def view(self, log: Log) -> tuple[Message, ...]:
        """The log with references, and the last turn with pictures."""
        labels = {image.digest: _label(number, image, log) for number, image in enumerate(log.pictures, start=1)}
        last = last_user(log.messages)
        content = [_content(message, labels, shown=index >= last) for index, message in enumerate(log.messages)]
        if content:
            content[last] += _recalled(log.messages[last], labels, log.pictures)
        return tuple(replace(message, content=parts) for message, parts in zip(log.messages, content, strict=True))


def _label(number: int, image: Image, log: Log) -> str:
    text = log.descriptions.get(image.digest, "").strip()
    return f"[image {number}, {image.digest[:DIGITS]}{f': {text}' if text else ''}]"


def _content(message: Message, labels: dict[str, str], *, shown: bool) -> tuple[str | Image, ...]:
    """Its parts with references for pictures, followed by the pictures themselves where they are shown."""
    content: list[str | Image] = []
    for part in message.content:
        if isinstance(part, str):
            content.append(part)
        else:
            content += [labels[part.digest], part] if shown else [labels[part.digest]]
    return tuple(content)


def _recalled(message: Message, labels: dict[str, str], known: Sequence[Image]) -> tuple[str | Image, ...]:
    """Pictures that the texts mention and the message does not show, each behind its reference."""
    texts = " ".join(part for part in message.content if isinstance(part, str))
    numbers = {int(number) for mention in _MENTION.findall(texts) for number in re.findall(r"\d+", mention)}
    shown = {image.digest for image in pictures_in([message])}
    wanted = [image for number, image in enumerate(known, start=1) if number in numbers and image.digest not in shown]
    return tuple(part for image in wanted for part in (labels[image.digest], image))
