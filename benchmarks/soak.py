"""`python -m benchmarks.soak [REQUESTS] [SEED]`: random cancels and kills for as long as it takes.

A small cluster of real worker processes answers questions with and without pictures, greedy and seeded. At random,
clients leave in the middle and workers or Redis are killed and replaced. Every complete answer must be the one of an
undisturbed cluster, and at the end nothing may be held and the router's memory must not have grown.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
from rich.console import Console

from triptych.errors import TriptychError

CONCURRENCY = 8
CANCEL_SHARE = 0.1
KILL_EVERY = 40


class Target(Protocol):
    """What is put to the test."""

    async def ask(self, number: int) -> str:
        """The answer to one of a limited number of questions."""

    async def kill(self, rng: random.Random) -> None:
        """Kill something, and bring it back."""

    async def idle(self) -> None:
        """Return once nothing is held for any request."""


@dataclass
class Report:
    """What became of the requests, and resident memory of this process at a tenth of the way and at the end, bytes."""

    ended: Counter[str] = field(default_factory=Counter)
    rss_early: int = 0
    rss_late: int = 0

    @property
    def grown(self) -> float:
        """Late memory over early."""
        return self.rss_late / self.rss_early


class Soak:
    """Runs requests against a target; `expected` are the right answers by question."""

    def __init__(self, target: Target, expected: list[str], rng: random.Random) -> None:
        self._target, self._expected, self._rng = target, expected, rng
        self.report = Report()
        self._done = 0

    async def run(self, requests: int) -> Report:
        """Return when all is over; TimeoutError of the target's own when something is never freed."""
        numbers = iter(range(requests))
        async with asyncio.TaskGroup() as group:
            killing = group.create_task(self._kill(requests))
            clients = [group.create_task(self._client(numbers, requests)) for _ in range(CONCURRENCY)]
            await asyncio.gather(*clients)
            await killing
        await self._target.idle()
        self.report.rss_late = psutil.Process().memory_info().rss
        return self.report

    async def _client(self, numbers: object, requests: int) -> None:
        for _ in numbers:  # type: ignore[attr-defined]  # shared by all clients: each number is taken once
            await self._one(self._rng.randrange(len(self._expected)))
            self._done += 1
            if self._done == requests // 10:
                self.report.rss_early = psutil.Process().memory_info().rss

    async def _one(self, number: int) -> None:
        asking = asyncio.create_task(self._target.ask(number))
        if self._rng.random() < CANCEL_SHARE:
            await asyncio.wait([asking], timeout=self._rng.random() * 0.2)
            asking.cancel()
        with suppress(asyncio.CancelledError):
            self.report.ended[await self._outcome(asking, number)] += 1
            return
        self.report.ended["cancelled"] += 1

    async def _outcome(self, asking: asyncio.Task[str], number: int) -> str:
        try:
            answer = await asking
        except TriptychError as error:
            return error.reason
        return "right" if answer == self._expected[number] else "wrong"

    async def _kill(self, requests: int) -> None:
        due = KILL_EVERY
        while due < requests:
            while self._done < due:  # noqa: ASYNC110 - counted by many tasks
                await asyncio.sleep(0.02)
            await self._target.kill(self._rng)
            due = self._done + KILL_EVERY


async def main(requests: int = 10_000, seed: int = 1) -> None:
    """The long form, on real workers."""
    from benchmarks._soak_cluster import QUESTIONS, open_target  # noqa: PLC0415 - the short form needs no torch

    with tempfile.TemporaryDirectory() as directory:
        async with open_target(Path(directory)) as target:
            expected = [await target.ask(number) for number in range(QUESTIONS)]
            report = await Soak(target, expected, random.Random(seed)).run(requests)
    Console().print(f"{requests} requests, seed {seed}: {dict(report.ended)}; memory x {report.grown:.2f}")


if __name__ == "__main__":
    asyncio.run(main(*(int(given) for given in sys.argv[1:3])))
