"""What the prefix cache must answer, from the block rule alone.

A block of KV is found when everything from the start of the prompt to the block's end is the same: tokens, pictures
and where they lie. So what a request reads is the longest common beginning with what was computed before, in whole
blocks; the prompt's last token is always computed, and an answer's last token never is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Picture:
    """`length` placeholders from token `offset` on that stand for the picture with this identity."""

    offset: int
    length: int
    identity: str


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    token_ids: tuple[int, ...]
    pictures: tuple[Picture, ...] = ()

    def symbols(self) -> list[tuple[int, str, int]]:
        """One value a token that is the same exactly where the model reads the same."""
        symbols = [(token, "", 0) for token in self.token_ids]
        for picture in self.pictures:
            for row in range(picture.length):
                at = picture.offset + row
                symbols[at] = (self.token_ids[at], picture.identity, row)
        return symbols


Symbol = tuple[int, str, int]
Node = dict[tuple[Symbol, ...], Any]


@dataclass
class Oracle:
    """Remembers what was computed in one scope whose caches began empty, and are large enough."""

    block_size: int
    _root: Node = field(default_factory=dict)
    _prompts: list[Prompt] = field(default_factory=list)

    def reads(self, prompt: Prompt) -> int:
        """Tokens that this prompt must find cached."""
        node, found = self._root, 0
        # Of the block that holds the last token nothing is read: one token at least must be computed.
        for block in self._blocks(prompt.symbols()[:-1]):
            if block not in node:
                break
            node, found = node[block], found + self.block_size
        return found

    def computed(self, prompt: Prompt, answer_ids: Sequence[int]) -> None:
        """A request has ended: its prompt and all but the last token of its answer are cached from now on."""
        self._prompts.append(prompt)
        node = self._root
        for block in self._blocks(prompt.symbols() + [(token, "", 0) for token in answer_ids[:-1]]):
            node = node.setdefault(block, {})

    def lose_answers(self) -> None:
        """The decode worker is gone, and with it the KV of the answers; prefill still has that of the prompts."""
        prompts, self._prompts = self._prompts, []
        self._root.clear()
        for prompt in prompts:
            self.computed(prompt, ())

    def _blocks(self, symbols: Sequence[Symbol]) -> Iterator[tuple[Symbol, ...]]:
        for start in range(0, len(symbols) - self.block_size + 1, self.block_size):
            yield tuple(symbols[start : start + self.block_size])
