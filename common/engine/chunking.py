"""Which part of which prompt a prefill step computes: chunked prefill under a token budget, fair to long and short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triptych.errors import ConfigError

if TYPE_CHECKING:
    from common.families.base import ImageSpan


@dataclass(frozen=True, slots=True)
class Waiting:
    """A prompt that is not finished: `computed` of `total` tokens are done, and those before `ready` could be.

    A chunk never ends inside an image of `uncut`.
    """

    key: str
    computed: int
    total: int
    ready: int
    uncut: Sequence[ImageSpan] = ()

    @property
    def available(self) -> int:
        """Tokens that could be computed now."""
        return max(0, self.ready - self.computed)

    @property
    def remaining(self) -> int:
        """Tokens until the prompt is finished."""
        return self.total - self.computed

    @property
    def least(self) -> int:
        """Tokens of the smallest chunk that could be computed now: one, or a whole image."""
        inside = [span.end for span in self.uncut if span.offset <= self.computed < span.end]
        return min(self.available, max(inside, default=self.computed + 1) - self.computed)

    def at_most(self, tokens: int) -> int:
        """Tokens of the largest chunk of up to `tokens` that could be computed now."""
        return cut_before(self.computed + min(tokens, self.available), self.uncut) - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `tokens` tokens of the prompt named `key`."""

    key: str
    tokens: int


def cut_before(tokens: int, uncut: Iterable[ImageSpan]) -> int:
    """The last place up to `tokens` that is not inside an image of `uncut`: where a chunk or a prefix may end."""
    return min((span.offset for span in uncut if span.offset < tokens < span.end), default=tokens)


def ready_tokens(total: int, images: Iterable[ImageSpan], ready: Sequence[bool]) -> int:
    """Tokens of a prompt of `total` that can be computed: those before the first image that is not ready."""
    pending = (span.offset for span, is_ready in zip(images, ready, strict=True) if not is_ready)
    return min(pending, default=total)


def plan_chunks(waiting: Sequence[Waiting], budget: int) -> list[Chunk]:
    """Spend at most `budget` tokens on `waiting`, given in order of arrival; at most one chunk a prompt.

    Half of the budget is kept for the oldest prompt that can go on, so a stream of short ones cannot starve it; the
    rest goes to those with the shortest remaining work, the oldest among them, so a long one does not hold up short
    ones. A prompt that waits for an image takes nothing and holds up nobody. An image that must not be cut is computed
    as soon as its prompt is the oldest, even if it alone is more than the budget. (Chunked prefill:
    Sarathi-Serve, OSDI 2024; shortest remaining time first with a floor for the oldest.)
    """
    if budget < 1:
        raise ConfigError(f"a step needs a budget of at least one token, not {budget}", param="budget")
    able = [prompt for prompt in waiting if prompt.available > 0]
    if not able:
        return []
    oldest = able[0]
    reserved = max(oldest.least, oldest.at_most((budget + 1) // 2))
    given = {oldest.key: reserved}
    left = max(0, budget - reserved)
    # sorted() is stable: among equals the earlier arrival goes first.
    for prompt in sorted(able, key=lambda each: each.remaining):
        before = given.get(prompt.key, 0)
        given[prompt.key] = prompt.at_most(before + left)
        left -= given[prompt.key] - before
    return [Chunk(prompt.key, given[prompt.key]) for prompt in able if given[prompt.key] > 0]
