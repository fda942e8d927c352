"""Turns the events of a request into one object, or into the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from services.router.http.completion import Json
from services.router.http.streaming import Events
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished, GenerateResponse

Generation = AsyncGenerator[GenerateResponse]


class Form(Protocol):
    """What an interface's answers look like."""

    def whole(self, deltas: Sequence[GenerateDelta], finishes: Sequence[GenerateFinished]) -> Json:
        """All answers as one object; the last finish has the account."""

    def opening(self, index: int) -> Json | None:
        """The first chunk of an answer, if there is one."""

    def delta(self, delta: GenerateDelta) -> Json | None:
        """A chunk, or None when there is nothing to say."""

    def closing(self, finished: GenerateFinished) -> Json:
        """The chunk that says why an answer ended."""

    def account(self, finished: GenerateFinished) -> Json:
        """The chunk with the usage."""


async def whole(generation: Generation, form: Form) -> Json:
    """Everything at once."""
    deltas, finishes = [], []
    async with aclosing(generation) as responses:
        async for response in responses:
            if response.HasField("delta"):
                deltas.append(response.delta)
            elif response.HasField("finished"):
                finishes.append(response.finished)
    return form.whole(deltas, finishes)


async def chunks(generation: Generation, form: Form, include_usage: bool) -> Events:
    """Piece by piece. None comes before the first token: until then a failure can still be a proper error."""
    opened: set[int] = set()
    async with aclosing(generation) as responses:
        async for response in responses:
            if response.HasField("started"):
                continue
            index = response.delta.index or response.finished.index
            if index not in opened and (chunk := form.opening(index)):
                yield chunk
            opened.add(index)
            if response.HasField("delta") and (chunk := form.delta(response.delta)):
                yield chunk
            if response.HasField("finished"):
                yield form.closing(response.finished)
                if include_usage and response.finished.HasField("usage"):
                    yield form.account(response.finished)
