"""What has happened in a conversation: messages and facts about them, both only ever appended to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from triptych.messages import Image, Message


@dataclass(frozen=True, slots=True)
class Summary:
    """Stands for `messages[:upto]` from the moment it was written."""

    upto: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """Says in words what the picture `digest` shows."""

    digest: str
    text: str = ""


Fact = Summary | Description


@dataclass(frozen=True, slots=True)
class Log:
    """The record. Policies are functions of it, so equal logs give equal prompts, wherever and whenever."""

    messages: tuple[Message, ...] = ()
    facts: tuple[Fact, ...] = ()

    def with_message(self, message: Message) -> Log:
        """One more turn."""
        return replace(self, messages=(*self.messages, message))

    def with_fact(self, fact: Fact) -> Log:
        """One more fact."""
        return replace(self, facts=(*self.facts, fact))

    @property
    def summaries(self) -> list[Summary]:
        """The summaries, oldest first."""
        return [fact for fact in self.facts if isinstance(fact, Summary)]

    @property
    def descriptions(self) -> dict[str, str]:
        """The first description of each picture, by digest."""
        return {fact.digest: fact.text for fact in reversed(self.facts) if isinstance(fact, Description)}

    @property
    def pictures(self) -> list[Image]:
        """The distinct pictures, in the order in which they first occurred."""
        first: dict[str, Image] = {}
        for image in pictures_in(self.messages):
            first.setdefault(image.digest, image)
        return list(first.values())


def pictures_in(messages: Iterable[Message]) -> list[Image]:
    """Every occurrence of a picture, in order."""
    return [part for message in messages for part in message.content if isinstance(part, Image)]


def last_user(messages: Sequence[Message]) -> int:
    """Index of the last turn of the user; 0 when there is none."""
    return max((index for index, message in enumerate(messages) if message.role == "user"), default=0)


def first_change(before: Sequence[Message], after: Sequence[Message]) -> int | None:
    """Index of the first message of `before` that `after` does not repeat; None when `after` only appends.

    From that message on a prefix cache has nothing to offer.
    """
    same = zip(before, after, strict=False)
    parted = next((index for index, (old, new) in enumerate(same) if old != new), min(len(before), len(after)))
    return parted if parted < len(before) else None
