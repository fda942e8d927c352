"""Segment roll-over: now and then the old history becomes one block of summary, and in between nothing changes."""

from __future__ import annotations

import re
from dataclasses import replace

from triptych.conversation.log import Log, Summary, last_user, pictures_in
from triptych.conversation.policy import Need, Policy, Writer
from triptych.errors import InvalidArgumentError
from triptych.messages import Message, user

_OPENING = re.compile(r"\[Summary \d+ of the conversation before this point\]\n")
REQUEST = "Summarise our conversation so far, what the images show included, so that it can go on without them."


class RollOver(Policy):
    """Rolls over when what would be sent has more than `max_images` pictures or `max_characters` of text.

    The boundary is the beginning of a user's turn, `keep_turns` before the present one. Everything before it, the
    opening system messages excepted, is folded into a summary that opens the turn at the boundary and carries its
    version. The request for a summary appends to the old prompt, so that itself comes from the cache.
    """

    name = "roll-over/1"

    def __init__(
        self,
        max_images: int = 8,
        max_characters: int = 20_000,
        keep_turns: int = 0,
        summary_tokens: int = 256,
        writer: Writer | None = None,
    ) -> None:
        if min(max_images, max_characters, summary_tokens) < 1 or keep_turns < 0:
            raise InvalidArgumentError("the limits of a segment are positive", param="max_images")
        self.max_images, self.max_characters = max_images, max_characters
        self.keep_turns, self.summary_tokens, self.writer = keep_turns, summary_tokens, writer

    def need(self, log: Log) -> Need | None:
        """A summary up to the boundary, when the limits are passed and it would shorten something."""
        if self._fits(self.view(log)):
            return None
        boundary, begin = self._boundary(log), log.summaries[-1].upto if log.summaries else _opening(log)
        if boundary <= begin:
            return None
        folded = replace(log, messages=log.messages[:boundary])
        return Need((*self.view(folded), user(REQUEST)), Summary(boundary), self.summary_tokens)

    def view(self, log: Log) -> tuple[Message, ...]:
        """System messages, the summary, and the segment that it opens."""
        if not log.summaries:
            return log.messages
        last = log.summaries[-1]
        opening, first = log.messages[: _opening(log)], log.messages[last.upto]
        block = replace(first, content=(block_of(len(log.summaries), last.text), *first.content))
        return (*opening, block, *log.messages[last.upto + 1 :])

    def _fits(self, messages: tuple[Message, ...]) -> bool:
        characters = sum(len(part) for message in messages for part in message.content if isinstance(part, str))
        return len(pictures_in(messages)) <= self.max_images and characters <= self.max_characters

    def _boundary(self, log: Log) -> int:
        """Where the turn that is `keep_turns` before the last one begins."""
        at = last_user(log.messages)
        for _ in range(self.keep_turns):
            at = last_user(log.messages[:at])
        return at


def block_of(version: int, text: str) -> str:
    """The summary as the model reads it: fixed from its writing to the next roll-over."""
    return f"[Summary {version} of the conversation before this point]\n{text}\n[End of summary {version}]\n"


def opens_summary(text: str) -> bool:
    """Whether a text of a message is such a block."""
    return _OPENING.match(text) is not None


def _opening(log: Log) -> int:
    """How many system messages open the log."""
    return next((index for index, message in enumerate(log.messages) if message.role != "system"), len(log.messages))
