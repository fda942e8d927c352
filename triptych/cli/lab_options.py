"""Texts of the laboratory's options, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.errors import InvalidArgumentError
from triptych.lab.groups import Group, groups_named
from triptych.lab.record import Prices
from triptych.lab.sessions import POLICIES


def chosen_groups(letters: str) -> Sequence[Group]:
    """InvalidArgumentError for a letter that is no group."""
    found = groups_named(letters)
    if len(found) != len(letters):
        raise InvalidArgumentError("groups are letters from A to H", param="groups")
    return found


def chosen_policies(names: str) -> list[str]:
    """InvalidArgumentError for an unknown name."""
    chosen = [name for name in names.split(",") if name]
    if unknown := set(chosen) - set(POLICIES):
        raise InvalidArgumentError(
            f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(POLICIES)}", param="policies"
        )
    return chosen


def numbers(text: str) -> list[int]:
    """Positive numbers between commas; InvalidArgumentError otherwise."""
    if not all(part.isdecimal() and int(part) > 0 for part in text.split(",")):
        raise InvalidArgumentError("positive numbers, separated by commas", param="histories")
    return [int(part) for part in text.split(",")]


def to_prices(text: str) -> Prices:
    """Four numbers between commas; InvalidArgumentError otherwise."""
    try:
        uncached, read, creation, completion = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidArgumentError("four numbers, separated by commas", param="prices") from error
    return Prices(uncached, read, creation, completion)
