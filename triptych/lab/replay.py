"""Replays a trace open loop: every request is sent at its time, however many are still running."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence

from triptych.aio import AsyncClient
from triptych.answers import Delta
from triptych.errors import TriptychError
from triptych.lab.endpoint import MAX_TOKENS, measured_of
from triptych.lab.record import Measured, Prices, Row
from triptych.lab.trace import Arrival

Observe = Callable[[Row | None], None]


class Replay:
    """`run` sends a trace to a cluster; `failures` counts requests by the reason of their error."""

    def __init__(self, client: AsyncClient, prices: Prices, observe: Observe, speed: float = 1.0) -> None:
        self._client, self._prices, self._observe, self._speed = client, prices, observe, speed
        self._salt = f"lab-{secrets.token_hex(8)}"
        self.failures: Counter[str] = Counter()

    async def run(self, arrivals: Sequence[Arrival]) -> None:
        """Return when the last answer is complete."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for arrival in arrivals:
                await asyncio.sleep(began + arrival.at_s / self._speed - loop.time())
                group.create_task(self._ask(arrival))

    async def _ask(self, arrival: Arrival) -> None:
        try:
            measured = await self._measure(arrival)
        except TriptychError as error:
            self.failures[error.reason] += 1
            self._observe(None)
            return
        self._observe(self._row(arrival, measured))

    async def _measure(self, arrival: Arrival) -> Measured:
        began, first = time.perf_counter(), None
        stream = self._client.generate(
            list(arrival.talk),
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            cache_salt=self._salt,
            session_id=arrival.session,
        )
        async for event in stream:
            if first is None and isinstance(event, Delta):
                first = time.perf_counter()
        ended = time.perf_counter()
        return measured_of(await stream.answer(), ((first or ended) - began) * 1e3, (ended - began) * 1e3)

    def _row(self, arrival: Arrival, measured: Measured) -> Row:
        spent, total = self._prices.input_cost(measured), self._prices.cost(measured)
        names = ("replay", arrival.group, 0, arrival.turn, True, arrival.turn)
        return Row(*names, measured, input_cost=spent, cost=total)
