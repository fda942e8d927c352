"""Conversations on an `AsyncClient`: `triptych.conversation.blocking` with `await` in front."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Unpack

from triptych.aio import AsyncClient
from triptych.aio_streams import AsyncEventStream
from triptych.answers import Answer, Event
from triptych.conversation.policy import Need, Policy
from triptych.conversation.talk import Talk
from triptych.errors import UnavailableError
from triptych.exchange import GenerateOptions
from triptych.messages import Image, Message, user


class AsyncTurnStream(AsyncEventStream):
    """`TurnStream` with `await` in front."""

    def __init__(self, talk: AsyncConversation, said: tuple[Message, ...], options: GenerateOptions) -> None:
        self._answer: Answer | None = None
        self._events = self._run(talk, said, options)

    async def answer(self) -> Answer:
        """Read to the end and return everything; UnavailableError when the stream was closed before."""
        async for _ in self:
            pass
        if self._answer is None:
            raise UnavailableError("the answer is not complete")
        return self._answer

    async def _run(
        self, talk: AsyncConversation, said: tuple[Message, ...], options: GenerateOptions
    ) -> AsyncGenerator[Event, None]:
        turn = talk.begin(said)
        while need := turn.need():
            turn.supply(need, await talk.write(need))
        messages = turn.messages()
        stream = talk.client.generate(messages, talk.model, **talk.merged(options))
        try:
            async for event in stream:
                yield event
            self._answer = talk.end(turn, messages, await stream.answer())
        finally:
            await stream.close()


class AsyncConversation(Talk):
    """`Conversation` on an `AsyncClient`; a policy's writer may be a coroutine function."""

    def __init__(
        self,
        client: AsyncClient,
        policy: Policy | None = None,
        instructions: str = "",
        model: str = "",
        **options: Unpack[GenerateOptions],
    ) -> None:
        super().__init__(policy, instructions, model, options)
        self.client = client

    def ask(self, *parts: str | Image, **options: Unpack[GenerateOptions]) -> AsyncTurnStream:
        """The user's next turn, as `Conversation.ask`."""
        return self.say(user(*parts), **options)

    def say(self, *messages: Message, **options: Unpack[GenerateOptions]) -> AsyncTurnStream:
        """As `Conversation.say`."""
        return AsyncTurnStream(self, messages, options)

    async def write(self, need: Need) -> str:
        """The text that is needed: by the policy's writer, else by the model."""
        if self.policy.writer is None:
            return (await self.client.generate(need.messages, self.model, **self.for_need(need)).answer()).text
        text = self.policy.writer(need.messages)
        return await text if inspect.isawaitable(text) else text
