"""Goodput under overload: answers in time a second at 0.5 to 4 times what the workers can do, and health meanwhile.

The decode worker runs a fixed number of requests at once and takes a fixed time for each token, so its capacity is
known. Requests arrive at random (Poisson) and have a deadline; an answer after it is worth nothing.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks._router import Front, running_router
from triptych import AsyncClient, Retry
from triptych.errors import TriptychError

TOKENS, STEP_MS, MAX_RUNNING = 10, 100.0, 8
CAPACITY = MAX_RUNNING / (TOKENS * STEP_MS / 1000)
DEADLINE_S = 4.0
SECONDS = 20.0
LOADS = (0.5, 1.0, 2.0, 4.0)


@dataclass
class Round:
    """What became of the requests of one load."""

    in_time: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    health_ms: list[float] = field(default_factory=list)


async def ask(client: AsyncClient, round_: Round, number: int) -> None:
    """One request."""
    options = {"max_tokens": TOKENS, "temperature": 0.0, "timeout_s": DEADLINE_S}
    try:
        await client.generate(f"number {number}", **options).answer()  # type: ignore[arg-type]  # all are options
    except TriptychError as error:
        round_.ended[error.reason] += 1
    else:
        round_.in_time += 1


async def probe(front: Front, round_: Round) -> None:
    """Ask for health ten times a second."""
    async with httpx.AsyncClient(base_url=front.url, timeout=10) as http:
        while True:
            began = time.perf_counter()
            await http.get("/healthz")
            round_.health_ms.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.1)


async def run(front: Front, client: AsyncClient, load: float, rng: random.Random) -> Round:
    """One load for `SECONDS`."""
    round_, ends = Round(), time.perf_counter() + SECONDS
    probing = asyncio.create_task(probe(front, round_))
    async with asyncio.TaskGroup() as requests:
        number = 0
        while time.perf_counter() < ends:
            requests.create_task(ask(client, round_, number))
            number += 1
            await asyncio.sleep(rng.expovariate(load * CAPACITY))
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)
    return round_


async def main() -> None:
    """Measure and print."""
    rng, rounds = random.Random(1), dict[float, Round]()
    # Repeating what was turned away would be more load.
    once = Retry(tries=1)
    async with running_router(STEP_MS, MAX_RUNNING) as front, AsyncClient(front.address, retry=once) as client:
        for load in LOADS:
            rounds[load] = await run(front, client, load, rng)
    show(rounds)


def show(rounds: dict[float, Round]) -> None:
    """The table."""
    table = Table("load", "in time/s", "of the peak", "turned away", "too late", "health p99 ms")
    peak = max(done.in_time for done in rounds.values())
    for load, done in rounds.items():
        away, late = done.ended["overloaded"], done.ended["deadline_exceeded"]
        health = statistics.quantiles(done.health_ms, n=100)[98]
        goodput, share = f"{done.in_time / SECONDS:.1f}", f"{done.in_time / peak:.2f}"
        table.add_row(f"{load:.1f}", goodput, share, f"{away}", f"{late}", f"{health:.0f}")
    Console().print(f"capacity {CAPACITY:.1f} answers/s, deadline {DEADLINE_S} s, {SECONDS:.0f} s each")
    Console().print(table)


if __name__ == "__main__":
    asyncio.run(main())
