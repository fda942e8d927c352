"""The sliding window of pictures: what most agents do, kept for comparison and for models that take few pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triptych.conversation.log import Log, first_change, pictures_in
from triptych.conversation.policy import Policy
from triptych.errors import InvalidArgumentError
from triptych.messages import Image, Message

REMOVED = "[an earlier image]"


class ImageWindow(Policy):
    """Sends only the last pictures; of older ones a fixed text remains.

    Whenever a picture drops out, everything behind its old place is computed anew, although the embeddings of the
    others still hit. `step` makes that rarer: pictures drop out `step` at a time, so between `keep - step + 1` and
    `keep` of them are sent.
    """

    name = "image-window/1"

    def __init__(self, keep: int, step: int = 1) -> None:
        if not 1 <= step <= keep:
            raise InvalidArgumentError(
                "the window keeps at least one picture and drops at most that many", param="step"
            )
        self.keep, self.step = keep, step

    def view(self, log: Log) -> tuple[Message, ...]:
        """The log without its oldest pictures."""
        over = len(pictures_in(log.messages)) - self.keep
        return _without(log.messages, -(-over // self.step) * self.step if over > 0 else 0)

    def caution(self, before: Sequence[Message], after: Sequence[Message]) -> str | None:
        """Says where the window broke the prefix."""
        at = first_change(before, after)
        if at is None:
            return None
        return (
            f"the window of pictures slid: messages from index {at} on are computed anew; "
            "RollOver or ImageReferences would have kept them"
        )


def _without(messages: Sequence[Message], count: int) -> tuple[Message, ...]:
    """`messages` with a text in the place of their first `count` pictures."""
    seen, sent = 0, []
    for message in messages:
        content: list[str | Image] = []
        for part in message.content:
            seen += isinstance(part, Image)
            content.append(REMOVED if isinstance(part, Image) and seen <= count else part)
        sent.append(replace(message, content=tuple(content)))
    return tuple(sent)
