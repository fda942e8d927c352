"""Batches by visual tokens: what arrives while a batch is computed forms the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.tracing import Interval

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class Entry(Generic[Item, Result]):
    """One waiting item; `future` gets its result and when its batch was computed."""

    item: Item
    tokens: int
    future: asyncio.Future[tuple[Result, Interval]]


class BatchQueue(Generic[Item, Result]):
    """First come, first served, as many as fit into a number of tokens. Awaits nothing."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: list[Entry[Item, Result]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry[Item, Result]) -> None:
        """Queue it."""
        self._entries.append(entry)

    def discard(self, entry: Entry[Item, Result]) -> None:
        """Take it out if it still waits."""
        if entry in self._entries:
            self._entries.remove(entry)

    def take(self) -> list[Entry[Item, Result]]:
        """The next batch, empty when nobody waits. A single item may exceed the limit; it could never be done else."""
        count, tokens = 0, 0
        for entry in self._entries:
            tokens += entry.tokens
            if count and tokens > self._max_tokens:
                break
            count += 1
        batch, self._entries = self._entries[:count], self._entries[count:]
        return batch


class Batcher(Generic[Item, Result]):
    """Runs `compute` on batches, one at a time, in a thread of its own."""

    def __init__(self, compute: Callable[[Sequence[Item]], Sequence[Result]], max_tokens: int) -> None:
        self._compute = compute
        self._queue: BatchQueue[Item, Result] = BatchQueue(max_tokens)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tower")
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, item: Item, tokens: int) -> tuple[Result, Interval]:
        """The item's result and when its batch was computed. Cancelling removes it while it waits."""
        entry: Entry[Item, Result] = Entry(item, tokens, asyncio.get_running_loop().create_future())
        self._queue.add(entry)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        try:
            return await entry.future
        finally:
            self._queue.discard(entry)

    async def _run(self) -> None:
        while batch := self._queue.take():
            await self._try(batch)

    async def _try(self, batch: list[Entry[Item, Result]]) -> None:
        try:
            results, when = await self._timed([entry.item for entry in batch])
            pairs = list(zip(batch, results, strict=True))
        except Exception as error:  # noqa: BLE001 whatever it is, the waiting must hear of it
            await self._apart(batch, error)
            return
        for entry, result in pairs:
            if not entry.future.done():
                entry.future.set_result((result, when))

    async def _apart(self, batch: list[Entry[Item, Result]], error: Exception) -> None:
        # One item may have spoilt the batch, by its content or by the memory it wants: its mates must not suffer.
        if len(batch) > 1:
            for entry in batch:
                await self._try([entry])
        elif not batch[0].future.done():
            batch[0].future.set_exception(error)

    async def _timed(self, items: list[Item]) -> tuple[Sequence[Result], Interval]:
        def run() -> tuple[Sequence[Result], Interval]:
            begin = time.monotonic_ns()
            return self._compute(items), Interval(begin, time.monotonic_ns())

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)
