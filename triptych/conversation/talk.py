"""What blocking and asyncio conversations have in common: everything but the calls."""

from __future__ import annotations

import uuid

from triptych.answers import Answer
from triptych.conversation.log import Log
from triptych.conversation.policy import AppendOnly, Need, Policy
from triptych.conversation.turn import Turn
from triptych.errors import FailedPreconditionError
from triptych.exchange import GenerateOptions
from triptych.messages import Message, system


class Talk:
    """What both kinds of conversation remember.

    `log` is everything that was said, `sent` the messages of the last request with its answer, `answers` all answers
    so far. `session_id` names the conversation to the server; it is no part of any prompt.
    """

    def __init__(self, policy: Policy | None, instructions: str, model: str, options: GenerateOptions) -> None:
        self.policy = policy or AppendOnly()
        self.log = Log((system(instructions),) if instructions else ())
        self.sent: tuple[Message, ...] = ()
        self.answers: list[Answer] = []
        self.session_id = options.get("session_id") or uuid.uuid4().hex
        self.model = model
        self.options: GenerateOptions = {"context_policy": self.policy.name, **options, "session_id": self.session_id}

    def merged(self, options: GenerateOptions) -> GenerateOptions:
        """The conversation's options, and over them those of one turn."""
        return {**self.options, **options}

    def begin(self, said: tuple[Message, ...]) -> Turn:
        """A turn of the conversation as it is now."""
        return Turn(self.log, self.sent, self.policy, *said)

    def end(self, turn: Turn, sent: tuple[Message, ...], answer: Answer) -> Answer:
        """Keep a turn and its answer; FailedPreconditionError when another one ended since it began."""
        if self.log is not turn.base:
            raise FailedPreconditionError("another turn of this conversation ended while this one was on its way")
        self.log = turn.finish(answer.text, answer.tool_calls)
        self.sent = (*sent, self.log.messages[-1])
        self.answers.append(answer)
        return answer

    def for_need(self, need: Need) -> GenerateOptions:
        """A text that is needed is written greedily, in the caches and the time of the conversation's requests."""
        # Outside the session: it is no turn, and the next turn would be compared with it.
        kept: GenerateOptions = {"max_tokens": need.max_tokens, "temperature": 0.0, "context_policy": self.policy.name}
        if salt := self.options.get("cache_salt"):
            kept["cache_salt"] = salt
        return kept
