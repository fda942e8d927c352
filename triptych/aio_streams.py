"""Answers on their way to an `AsyncClient`: `triptych.streams` with `await` in front."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from triptych.answers import Answer, Delta, Event
from triptych.connection import AsyncConnection
from triptych.errors import TriptychError
from triptych.exchange import Exchange
from triptych.uploads import pieces


class AsyncEventStream(ABC):
    """An answer on its way: iterate over its events, over its `text`, or wait for the whole `answer`."""

    _events: AsyncGenerator[Event, None]

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def text(self) -> AsyncIterator[str]:
        """The pieces of text as they become certain; of several answers, those of the first."""
        async for event in self:
            if isinstance(event, Delta) and event.text and not event.index:
                yield event.text

    @abstractmethod
    async def answer(self) -> Answer:
        """Read to the end and return everything."""

    async def close(self) -> None:
        """Cancel the request unless it is complete; harmless twice."""
        await self._events.aclose()


class AsyncAnswerStream(AsyncEventStream):
    """The answer to one request."""

    def __init__(self, connection: AsyncConnection, exchange: Exchange) -> None:
        self._connection, self._exchange = connection, exchange
        self._events = self._run()

    async def answer(self) -> Answer:
        """Read to the end and return everything."""
        async for _ in self:
            pass
        return self._exchange.answer()

    async def answers(self) -> list[Answer]:
        """Read to the end and return all answers, as many as `n` asked for."""
        async for _ in self:
            pass
        return self._exchange.answers()

    async def _run(self) -> AsyncGenerator[Event, None]:
        exchange = self._exchange
        while not exchange.complete:
            await upload(self._connection, exchange)
            try:
                async with aclosing(self._attempt()) as events:
                    async for event in events:
                        yield event
            except TriptychError as error:
                await asyncio.sleep(exchange.on_failure(error))

    async def _attempt(self) -> AsyncGenerator[Event, None]:
        exchange = self._exchange
        with self._connection.errors():
            call = self._connection.stub.Generate(exchange.request, timeout=exchange.left_s())
            try:
                async for response in call:
                    for event in exchange.on_response(response):
                        yield event
            finally:
                call.cancel()
            exchange.on_end()


async def upload(connection: AsyncConnection, exchange: Exchange) -> None:
    """Send the pictures that the server lacks."""
    put = connection.stub.PutImage
    for image in exchange.take_uploads():
        send = lambda image=image: put(pieces(image, exchange.cache_salt), timeout=exchange.left_s())  # noqa: E731
        await connection.call(send, exchange.left_s)
