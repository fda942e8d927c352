"""Follows JSON text that arrives piece by piece."""

from __future__ import annotations


class ObjectText:
    """Follows one JSON object to its end without parsing it."""

    def __init__(self) -> None:
        self._depth, self._in_string, self._escaped = 0, False, False
        self.complete = False

    def take(self, text: str) -> str:
        """The part of `text` that belongs to the object."""
        if self.complete:
            return ""
        for at, char in enumerate(text):
            self._step(char)
            if self._depth == 0:
                self.complete = True
                return text[: at + 1]
        return text

    def _step(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped, self._in_string = char == "\\", char != '"'
        elif char == '"':
            self._in_string = True
        else:
            self._depth += (char in "{[") - (char in "}]")
