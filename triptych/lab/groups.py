"""The experiment's groups: what differs between a first request and a second one. Pure.

A to H follow the controlled experiment of the background text on image caching: everything fixed, one variable changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triptych.lab.material import Item, Material, reencoded
from triptych.lab.talks import Talk, history, part_at, places, question, reference, swapped, with_part, without
from triptych.messages import Image, assistant, user

MORE = "And what else?"


@dataclass(frozen=True)
class Setup:
    """One way to run a group: how long the history is, and whether pictures are in it or words for them."""

    material: Material
    turns: int
    pictures: bool

    @property
    def talk(self) -> Talk:
        """The first request."""
        return history(self.material, self.turns, self.pictures)

    @property
    def next_item(self) -> Item:
        """What has not been talked about yet."""
        return self.material.item(self.turns)


@dataclass(frozen=True)
class Pair:
    """Two requests, the second depending on the first one's answer; `expected` is the right answer to the second."""

    first: Talk
    second: Callable[[str], Talk]
    expected: str | None


@dataclass(frozen=True)
class Group:
    """`build` makes the two requests. `words`: the group makes sense without pictures, too."""

    name: str
    title: str
    build: Callable[[Setup], Pair]
    words: bool = True


def _identical(setup: Setup) -> Pair:
    return Pair(setup.talk, lambda answer: setup.talk, _answer(setup))


def _text_appended(setup: Setup) -> Pair:
    item = setup.material.item(setup.turns - 1)
    second = lambda answer: (*setup.talk, assistant(answer), user(item.question))  # noqa: E731
    return Pair(setup.talk, second, item.answer)


def _image_appended(setup: Setup) -> Pair:
    item = setup.next_item
    second = lambda answer: (*setup.talk, assistant(answer), question(item, setup.pictures))  # noqa: E731
    return Pair(setup.talk, second, item.answer)


def _oldest_removed(setup: Setup) -> Pair:
    return _changed(setup, without(setup.talk, _parts(setup)[0]))


def _newest_removed(setup: Setup) -> Pair:
    return _changed(setup, without(setup.talk, _parts(setup)[-1]), None)


def _reencoded(setup: Setup) -> Pair:
    place = _parts(setup)[0]
    picture = part_at(setup.talk, place)
    return _changed(
        setup, with_part(setup.talk, place, reencoded(picture)) if isinstance(picture, Image) else setup.talk
    )


def _reordered(setup: Setup) -> Pair:
    parts = _parts(setup)
    return _changed(setup, swapped(setup.talk, parts[0], parts[-1]), None)


def _referenced(setup: Setup) -> Pair:
    """The history names its pictures in words; the first one comes back at the end, where it is needed."""
    talk, item = setup.talk, setup.material.item(0)
    for index, place in enumerate(places(talk)):
        talk = with_part(talk, place, reference(setup.material.item(index)))
    second = lambda answer: (*talk, assistant(answer), question(item, setup.pictures))  # noqa: E731
    return Pair(talk, second, item.answer)


def _changed(setup: Setup, second: Talk, expected: str | None = "") -> Pair:
    return Pair(setup.talk, lambda answer: second, _answer(setup) if expected == "" else expected)


def _answer(setup: Setup) -> str:
    return setup.material.item(setup.turns - 1).answer


def _parts(setup: Setup) -> Sequence[tuple[int, int]]:
    """The pictures; without pictures the user's texts, so that the same edit is made to words."""
    opening = len(setup.material.begin())
    words = [(index, 0) for index, each in enumerate(setup.talk) if each.role == "user" and index >= opening]
    return places(setup.talk) if setup.pictures else words


GROUPS: tuple[Group, ...] = (
    Group("A", "identical", _identical),
    Group("B", "text appended", _text_appended),
    Group("C", "image appended", _image_appended),
    Group("D", "oldest image removed", _oldest_removed),
    Group("E", "newest image removed", _newest_removed),
    Group("F", "same picture, another encoding", _reencoded, words=False),
    Group("G", "order of images changed", _reordered),
    Group("H", "image references in the history, picture at the end", _referenced, words=False),
)


def groups_named(names: str) -> tuple[Group, ...]:
    """Groups by their letters, in that order; unknown letters are left to the caller to refuse."""
    by_name = {group.name: group for group in GROUPS}
    return tuple(by_name[name] for name in names if name in by_name)
