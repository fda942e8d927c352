"""The answers to one request, as one stream of events and one account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.router.answers.choice import Choice, Event
from triptych.v1.router_pb2 import GenerateFinished
from triptych.v1.types_pb2 import Usage

_Item = Event | BaseException


def events_of(choices: Sequence[Choice]) -> AsyncGenerator[Event]:
    """Events of all, mixed; the first failure ends them all. The first choice has been started.

    The others begin once the first has a token: by then workers have its prompt in their caches.
    """
    return _Mixer(choices).events() if len(choices) > 1 else choices[0].events()


class _Mixer:
    """One task a choice, one queue; nobody runs far ahead of a reader who is slow."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(maxsize=len(choices))
        self._begun = asyncio.Event()

    async def events(self) -> AsyncGenerator[Event]:
        """See `events_of`."""
        tasks = [asyncio.create_task(self._feed(choice)) for choice in self._choices]
        left = len(tasks)
        try:
            while left:
                item = await self._queue.get()
                if isinstance(item, BaseException):
                    raise item
                left -= isinstance(item, GenerateFinished)
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, choice: Choice) -> None:
        try:
            if choice.index:
                await self._begun.wait()
                await choice.start()
            async with aclosing(choice.events()) as events:
                async for event in events:
                    await self._queue.put(event)
                    self._begun.set()
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            await self._queue.put(error)


def total_usage(choices: Sequence[Choice]) -> Usage:
    """The account of the request: the prompt as the first choice met it, with the tokens and bytes of all."""
    usages = [choice.usage() for choice in choices]
    total = usages[0]
    total.completion_tokens = sum(usage.completion_tokens for usage in usages)
    total.kv_transfer_bytes = sum(usage.kv_transfer_bytes for usage in usages)
    return total
