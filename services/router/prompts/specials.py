"""Keeps text of users from becoming special tokens, without changing how harmless text is tokenized.

A special token in a rendered chat is the template's own unless it lies in, or reaches into, a user's text. Text in
which that cannot be is left alone, so it is tokenized exactly as transformers would. In the rest the first and last
characters of special tokens are swapped for private ones before rendering; what then still reads as special is the
template's, and everything that holds a private character is tokenized literally after swapping back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PRIVATE_PLANE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True)
class Piece:
    """A piece of a rendered chat; in a literal one no special token is recognized."""

    text: str
    literal: bool


class SpecialTokens:
    """What the special tokens of a tokenizer look like."""

    def __init__(self, contents: Iterable[str]) -> None:
        self._contents = tuple(sorted({text for text in contents if text}, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._contents)) or r"(?!)")
        self._edges = sorted({edge for text in self._contents for edge in (text[0], text[-1])})
        self._heads = tuple({text[:size] for text in self._contents for size in range(1, len(text))})
        self._tails = tuple({text[-size:] for text in self._contents for size in range(1, len(text))})

    def threatened_by(self, texts: Sequence[str]) -> bool:
        """Whether consecutive texts hold a special token or could form one with what a template puts beside them."""
        if self._pattern.search("".join(texts)):
            return True
        # Templates may trim, so the edges count with and without the white space around them.
        edged = [form for text in texts for form in (text, text.strip())]
        return any(text.endswith(self._heads) or text.startswith(self._tails) for text in edged)

    def disguise(self, texts: Sequence[str]) -> dict[int, str]:
        """A translation table to characters that none of `texts` has."""
        used = {ord(char) for text in texts for char in text}
        free = (chr(code) for code in PRIVATE_PLANE if code not in used)
        return {ord(edge): char for edge, char in zip(self._edges, free, strict=False)}

    def split(self, chat: str, table: dict[int, str]) -> list[Piece]:
        """Cut a chat rendered from disguised texts into pieces with the original characters."""
        back = {ord(char): chr(edge) for edge, char in table.items()}
        pieces: list[Piece] = []
        plain = ""
        for segment in self._segments(chat):
            original = segment.translate(back)
            if original == segment:
                plain += segment
                continue
            pieces += [Piece(plain, False), Piece(original, True)]
            plain = ""
        return [piece for piece in (*pieces, Piece(plain, False)) if piece.text]

    def _segments(self, chat: str) -> Iterable[str]:
        """The special tokens and what is between them."""
        at = 0
        for match in self._pattern.finditer(chat):
            yield chat[at : match.start()]
            yield match.group()
            at = match.end()
        yield chat[at:]
