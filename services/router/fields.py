"""The field that an error names, as its caller knows it: one check serves interfaces that call it differently."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from triptych.errors import TriptychError

Renaming = tuple[str, str]
"""A regular expression for a part of a field's path, and what stands there instead."""


@contextmanager
def fields_renamed(renamings: Iterable[Renaming]) -> Iterator[None]:
    """Errors of the block name their field as `renamings`, applied in order, say; in the message, too."""
    try:
        yield
    except TriptychError as error:
        _rename(error, renamings)
        raise


def _rename(error: TriptychError, renamings: Iterable[Renaming]) -> None:
    before = after = error.param or ""
    for pattern, replacement in renamings:
        after = re.sub(pattern, replacement, after)
    if after != before:
        error.param = after
        error.message = re.sub(rf"(?<![\w.]){re.escape(before)}(?!\w)", lambda _: after, error.message)
