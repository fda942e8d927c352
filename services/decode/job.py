"""One request on a decode worker, as its call handler sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from common.engine.sampler import SampledToken
from common.engine.sequence import Sequence
from common.kv.reservations import Reservation
from triptych.errors import TriptychError

FinishReason = Literal["stop", "length"]
Event = Reservation | SampledToken | FinishReason | TriptychError


@dataclass(eq=False, slots=True)
class Job:
    """A sequence and the events for its caller: a reservation, tokens, then a finish reason.

    The full blocks of the first `published` tokens can be found by others, as far as they are still cached.
    """

    sequence: Sequence
    arrival: int = 0
    published: int = 0
    reservation: Reservation | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    @property
    def most_tokens(self) -> int:
        """Tokens that prompt and answer may reach together."""
        return self.sequence.num_prompt + self.sequence.params.max_tokens

    def emit(self, event: Event) -> None:
        """Hand an event to the caller; a `TriptychError` ends the stream by being raised there."""
        self._events.put_nowait(event)

    async def events(self) -> AsyncIterator[Reservation | SampledToken | FinishReason]:
        """Events until the end."""
        while True:
            event = await self._events.get()
            if isinstance(event, TriptychError):
                raise event
            yield event
            if isinstance(event, str):
                return
