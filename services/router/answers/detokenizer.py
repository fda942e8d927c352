"""Token ids to text, incrementally, never splitting a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
# What every decoder gives for bytes that are no complete character (yet).
INCOMPLETE = "\ufffd"


class Detokenizer:
    """The pieces of text it returns join to `decode(all ids)`, for bytes that are text at all.

    (SentencePiece's decoder declares a whole run of byte tokens broken when one is; what was shown by then stays.)

    A token alone does not tell its text: spaces depend on neighbours and characters span tokens. So a window is
    decoded twice, with and without the new tokens, and the difference is the new text, as in text-generation-inference
    and vLLM.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # The window starts at tokens that gave text; what a decoder does at the start of a string happens to them.
        self._window = 0
        self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """Take in tokens, give out the text that is certain now; it may be empty."""
        text = ""
        for token in ids:
            self._ids.append(token)
            text += self._advance(complete_only=True)
        return text

    def flush(self) -> str:
        """The rest, once no more tokens can come; an incomplete character shows as U+FFFD, as in `decode`."""
        return self._advance(complete_only=False)

    def _advance(self, complete_only: bool) -> str:
        before = self._decode(self._ids[self._window : self._shown])
        after = self._decode(self._ids[self._window :])
        if len(after) <= len(before) or (complete_only and after.endswith(INCOMPLETE)):
            return ""
        self._window, self._shown = self._shown, len(self._ids)
        return after[len(before) :]
