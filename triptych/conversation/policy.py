"""What a policy is: a pure function from the log to the messages that are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from triptych.conversation.log import Fact, Log
from triptych.messages import Message

Writer = Callable[[Sequence[Message]], str | Awaitable[str]]


class PrefixWarning(UserWarning):
    """A policy rewrote history: what the caches hold of it from some message on is of no use any more."""


@dataclass(frozen=True, slots=True)
class Need:
    """A text that must be written before the next request: `messages` ask for it, `fact` is where it goes."""

    messages: tuple[Message, ...]
    fact: Fact
    max_tokens: int


class Policy:
    """Sends the whole log. Subclasses send less of it.

    `name` goes with every request, for the server's metrics; its version rises when the same log would be sent
    differently.

    `writer` answers needs: it gets their messages and returns the text, or, for `AsyncConversation`, an awaitable of
    it. None: the model itself is asked.
    """

    name: ClassVar[str] = "other"
    writer: Writer | None = None

    def need(self, log: Log) -> Need | None:
        """What has to be known before `view` may be called; asked again until it is None."""
        return None

    def view(self, log: Log) -> tuple[Message, ...]:
        """The messages to send; `log` ends with the user's turn."""
        return log.messages

    def caution(self, before: Sequence[Message], after: Sequence[Message]) -> str | None:
        """A sentence when sending `after` after `before` breaks the prefix in a way that the policy could avoid."""
        return None


class AppendOnly(Policy):
    """Never touches what was sent: every turn finds all of the turn before in the caches. The prompt grows forever."""

    name = "append-only/1"
