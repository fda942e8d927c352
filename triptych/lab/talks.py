"""Conversations as values, and the edits that experiments make to them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from triptych.lab.material import Item, Material
from triptych.messages import Image, Message, assistant, user

Talk = tuple[Message, ...]


def history(material: Material, turns: int, pictures: bool) -> Talk:
    """A conversation whose last message is the user's question number `turns`; earlier answers are the right ones."""
    talk = material.begin()
    for index in range(turns):
        item = material.item(index)
        talk += [question(item, pictures), assistant(item.answer)]
    return tuple(talk[:-1])


def question(item: Item, pictures: bool) -> Message:
    """A user's turn about an item, with its picture or with words for it."""
    return user(item.picture, item.question) if pictures else user(f"{item.note} {item.question}")


def reference(item: Item) -> str:
    """Stable words that stand for a picture in the history."""
    return f"[picture {item.picture.digest[:12]}: {item.note}]"


def places(talk: Sequence[Message]) -> list[tuple[int, int]]:
    """Where the pictures are: (message, part) in order."""
    return [
        (index, at)
        for index, message in enumerate(talk)
        for at, part in enumerate(message.content)
        if isinstance(part, Image)
    ]


def without(talk: Talk, place: tuple[int, int]) -> Talk:
    """The talk without one part; a message that becomes empty stays, so that only this changes."""
    return _edit(talk, place[0], lambda parts: parts[: place[1]] + parts[place[1] + 1 :])


def with_part(talk: Talk, place: tuple[int, int], part: str | Image) -> Talk:
    """The talk with one part replaced."""
    return _edit(talk, place[0], lambda parts: (*parts[: place[1]], part, *parts[place[1] + 1 :]))


def part_at(talk: Talk, place: tuple[int, int]) -> str | Image:
    """One part."""
    return talk[place[0]].content[place[1]]


def swapped(talk: Talk, one: tuple[int, int], other: tuple[int, int]) -> Talk:
    """The talk with two parts in each other's place."""
    mine, theirs = part_at(talk, one), part_at(talk, other)
    return with_part(with_part(talk, one, theirs), other, mine)


def _edit(talk: Talk, index: int, change: Callable[[tuple[str | Image, ...]], tuple[str | Image, ...]]) -> Talk:
    message = talk[index]
    return (*talk[:index], replace(message, content=change(message.content)), *talk[index + 1 :])
