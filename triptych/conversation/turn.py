"""One turn of a conversation without I/O: what must be written first, what is sent, and what is kept of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from triptych.conversation.log import Log
from triptych.conversation.policy import Need, Policy, PrefixWarning
from triptych.messages import Message, ToolCall


class Turn:
    """Answer every `need` with `supply`, send `messages`, and keep what `finish` returns."""

    def __init__(self, log: Log, sent: Sequence[Message], policy: Policy, *said: Message) -> None:
        self.base = log
        self._log, self._sent, self._policy = log, sent, policy
        for message in said:
            self._log = self._log.with_message(message)

    def need(self) -> Need | None:
        """The next text to write before anything can be sent."""
        return self._policy.need(self._log)

    def supply(self, need: Need, text: str) -> None:
        """File a text that was needed."""
        self._log = self._log.with_fact(replace(need.fact, text=text.strip()))

    def messages(self) -> tuple[Message, ...]:
        """What to send. Warns with PrefixWarning when the policy breaks the prefix and need not."""
        messages = self._policy.view(self._log)
        if caution := self._policy.caution(self._sent, messages):
            warnings.warn(caution, PrefixWarning, stacklevel=2)
        return messages

    def finish(self, text: str, tool_calls: tuple[ToolCall, ...] = ()) -> Log:
        """The log with question and answer."""
        return self._log.with_message(Message("assistant", (text,) if text else (), tool_calls))
