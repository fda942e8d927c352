"""Where one answer is in its language."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher


class GrammarState:
    """Follows the tokens of one answer. It depends on nothing but them, so any worker can continue any answer."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._followed = 0

    @property
    def failed(self) -> bool:
        """True once the answer cannot go on: its tokens are not of the language, or the parser reached a limit."""
        return self._matcher.is_error()

    def allowed(self, output_ids: Sequence[int]) -> bytes | None:
        """Which tokens may follow `output_ids`, the whole answer so far; None once it has failed.

        One bit a token, the lowest bit of the first byte for token 0. An end token is allowed exactly when the answer
        is complete as it is. Blocking: up to some milliseconds in a hard grammar.
        """
        fresh = list(output_ids[self._followed :])
        self._followed += len(fresh)
        if fresh and not self._matcher.consume_tokens(fresh):
            return None
        mask = self._matcher.compute_bitmask()
        return None if self.failed else mask
