"""Answers on their way to a `Client`; what is sent and when is decided in `triptych.exchange`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator

from triptych.answers import Answer, Delta, Event
from triptych.connection import Connection
from triptych.errors import TriptychError
from triptych.exchange import Exchange
from triptych.uploads import pieces


class EventStream(ABC):
    """An answer on its way: iterate over its events, over its `text`, or wait for the whole `answer`."""

    _events: Generator[Event, None, None]

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def text(self) -> Iterator[str]:
        """The pieces of text as they become certain; of several answers, those of the first."""
        return (event.text for event in self if isinstance(event, Delta) and event.text and not event.index)

    @abstractmethod
    def answer(self) -> Answer:
        """Read to the end and return everything."""

    def close(self) -> None:
        """Cancel the request unless it is complete; harmless twice."""
        self._events.close()


class AnswerStream(EventStream):
    """The answer to one request."""

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        self._connection, self._exchange = connection, exchange
        self._events = self._run()

    def answer(self) -> Answer:
        """Read to the end and return everything."""
        for _ in self:
            pass
        return self._exchange.answer()

    def answers(self) -> list[Answer]:
        """Read to the end and return all answers, as many as `n` asked for."""
        for _ in self:
            pass
        return self._exchange.answers()

    def _run(self) -> Generator[Event, None, None]:
        exchange = self._exchange
        while not exchange.complete:
            upload(self._connection, exchange)
            try:
                yield from self._attempt()
            except TriptychError as error:
                time.sleep(exchange.on_failure(error))

    def _attempt(self) -> Iterator[Event]:
        exchange = self._exchange
        with self._connection.errors():
            call = self._connection.stub.Generate(exchange.request, timeout=exchange.left_s())
            try:
                for response in call:
                    yield from exchange.on_response(response)
            finally:
                call.cancel()
            exchange.on_end()


def upload(connection: Connection, exchange: Exchange) -> None:
    """Send the pictures that the server lacks."""
    put = connection.stub.PutImage
    for image in exchange.take_uploads():
        send = lambda image=image: put(pieces(image, exchange.cache_salt), timeout=exchange.left_s())  # noqa: E731
        connection.call(send, exchange.left_s)
