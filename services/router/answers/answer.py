"""The text of one answer: tokens in, certain text out, ended by a stop string if one is met."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.answers.detokenizer import Decode, Detokenizer
from services.router.answers.stops import StopMatcher


class AnswerText:
    """A detokenizer followed by a stop matcher."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = StopMatcher(stops)

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the answer, once one did."""
        return self._stops.matched

    def push(self, ids: Sequence[int]) -> tuple[str, int]:
        """Text that became certain, and how many of `ids` belong to the answer: those up to a stop string's end."""
        text = ""
        for used, token in enumerate(ids, start=1):
            text += self._stops.push(self._detokenizer.push([token]))
            if self.matched_stop is not None:
                return text, used
        return text, len(ids)

    def finish(self) -> str:
        """Text that was held back; call it once, after the last token."""
        last = self._stops.push(self._detokenizer.flush())
        return last + self._stops.flush()
