"""Conversations on a `Client`; the asyncio twin is in `aio` beside it, what both decide in `talk`."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from contextlib import closing
from typing import Unpack

from triptych.answers import Answer, Event
from triptych.client import Client
from triptych.conversation.policy import Need, Policy
from triptych.conversation.talk import Talk
from triptych.errors import InvalidArgumentError, UnavailableError
from triptych.exchange import GenerateOptions
from triptych.messages import Image, Message, user
from triptych.streams import EventStream


class TurnStream(EventStream):
    """The answer to one turn on its way. The turn is part of the conversation once it was read to its end."""

    def __init__(self, talk: Conversation, said: tuple[Message, ...], options: GenerateOptions) -> None:
        self._answer: Answer | None = None
        self._events = self._run(talk, said, options)

    def answer(self) -> Answer:
        """Read to the end and return everything; UnavailableError when the stream was closed before."""
        for _ in self:
            pass
        if self._answer is None:
            raise UnavailableError("the answer is not complete")
        return self._answer

    def _run(
        self, talk: Conversation, said: tuple[Message, ...], options: GenerateOptions
    ) -> Generator[Event, None, None]:
        turn = talk.begin(said)
        while need := turn.need():
            turn.supply(need, talk.write(need))
        messages = turn.messages()
        with closing(talk.client.generate(messages, talk.model, **talk.merged(options))) as stream:
            yield from stream
            self._answer = talk.end(turn, messages, stream.answer())


class Conversation(Talk):
    """A conversation on `client`. Options are those of `Client.generate`, for every turn."""

    def __init__(
        self,
        client: Client,
        policy: Policy | None = None,
        instructions: str = "",
        model: str = "",
        **options: Unpack[GenerateOptions],
    ) -> None:
        super().__init__(policy, instructions, model, options)
        self.client = client

    def ask(self, *parts: str | Image, **options: Unpack[GenerateOptions]) -> TurnStream:
        """The user's next turn: texts and pictures in order. Nothing is sent before the stream is read.

        A turn that fails or is closed early leaves no trace in the log. A warning of the policy is a PrefixWarning.
        """
        return self.say(user(*parts), **options)

    def say(self, *messages: Message, **options: Unpack[GenerateOptions]) -> TurnStream:
        """As `ask`, for turns that are messages already, such as the results of function calls."""
        return TurnStream(self, messages, options)

    def write(self, need: Need) -> str:
        """The text that is needed: by the policy's writer, else by the model."""
        if self.policy.writer is None:
            return self.client.generate(need.messages, self.model, **self.for_need(need)).answer().text
        text = self.policy.writer(need.messages)
        if inspect.iscoroutine(text):
            text.close()
        if not isinstance(text, str):
            raise InvalidArgumentError("the writer of a blocking conversation returns a string", param="writer")
        return text
