"""What the router adds: latency over calling the workers oneself, and requests/s of one router process.

The workers compute nothing and sit in a process of their own. The prompt has about a thousand tokens and no picture,
the answer one token, so that what remains is rendering, tokenizing, hashing, placement and the calls. A `new text` was
never seen before; `next turn` is a conversation that begins with a text that was.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from benchmarks._router import MODEL, Front, running_router
from triptych import AsyncClient
from triptych.channel import open_channel
from triptych.v1.decode_pb2 import DecodeRequest
from triptych.v1.decode_pb2_grpc import DecodeServiceStub
from triptych.v1.prefill_pb2 import PrefillBegin, PrefillRequest
from triptych.v1.prefill_pb2_grpc import PrefillServiceStub
from triptych.v1.types_pb2 import Prompt, SamplingParams

WORDS = 1000
ROUNDS = 300
THROUGHPUT_S = 6.0
CONCURRENCY = 32
NUMBERS = count(1)
Ask = Callable[[int], Awaitable[None]]


def question(number: int) -> str:
    """A text of about a thousand tokens, another one for each number."""
    return f"question {number}: " + "red " * WORDS


def next_turn(number: int) -> list[dict[str, str]]:
    """The same text, answered, and something else to ask for each number."""
    said = (("user", question(0)), ("assistant", "blue"), ("user", f"and {number}?"))
    return [{"role": role, "content": text} for role, text in said]


class Straight:
    """A client that does itself what the router does at least: both calls, and reading to the end."""

    def __init__(self, front: Front) -> None:
        self._channels = [open_channel(front.decode), open_channel(front.prefill)]
        self._decode, self._prefill = DecodeServiceStub(self._channels[0]), PrefillServiceStub(self._channels[1])
        ids = AutoTokenizer.from_pretrained(MODEL).encode(question(0))
        self.prompt = Prompt(token_ids=ids, cache_scope="0" * 64)

    async def ask(self, number: int) -> None:
        """One request."""
        sampling = SamplingParams(max_tokens=1, temperature=0)
        call = self._decode.Decode(DecodeRequest(request_id="r", prompt=self.prompt, sampling=sampling))
        reserved: Any = await call.read()
        begin = PrefillBegin(request_id="r", prompt=self.prompt, sampling=sampling, ticket=reserved.ticket)
        await self._prefill.Prefill(iter([PrefillRequest(begin=begin)]))
        while await call.read() is not grpc.aio.EOF:
            pass

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            await channel.close()


async def latencies(*asks: Ask) -> list[list[float]]:
    """Milliseconds of each, taken in turn; everything asked is new."""
    found: list[list[float]] = [[] for _ in asks]
    for _ in range(ROUNDS):
        for ask, times in zip(asks, found, strict=True):
            began = time.perf_counter()
            await ask(next(NUMBERS))
            times.append((time.perf_counter() - began) * 1000)
    return found


async def throughput(ask: Ask, front: Front) -> tuple[float, float]:
    """Requests/s at `CONCURRENCY`, and milliseconds of the router's CPU a request."""
    done, ends, before = 0, time.perf_counter() + THROUGHPUT_S, front.process.cpu_times()

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await ask(next(NUMBERS))
            done += 1

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    after = front.process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return done / THROUGHPUT_S, cpu_s / done * 1000


async def main() -> None:
    """Measure and print."""
    async with running_router(workers=4) as front:
        straight = Straight(front)
        async with AsyncClient(front.address) as client:

            async def new(number: int) -> None:
                await client.generate(question(number), max_tokens=1, temperature=0).answer()

            async def known(number: int) -> None:
                await client.generate(next_turn(number), max_tokens=1, temperature=0).answer()

            await asyncio.gather(*(ask(next(NUMBERS)) for ask in (new, known) for _ in range(50)))
            times = await latencies(straight.ask, new, known)
            served = [await throughput(ask, front) for ask in (new, known)]
        await straight.close()
        rss = front.process.memory_info().rss / 2**20
    show(len(straight.prompt.token_ids), times, served)
    Console().print(f"memory of the router: {rss:.0f} MiB")


def show(tokens: int, times: list[list[float]], served: list[tuple[float, float]]) -> None:
    """A row for each way of asking; the first, straight, is what the others add to."""
    table = Table("ms", "p50", "added", "p99", "added", "requests/s", "CPU a request")
    marks = [[statistics.quantiles(each, n=100)[at] for at in (49, 98)] for each in times]
    for name, mark, load in zip(("straight", "new text", "next turn"), marks, [None, *served], strict=True):
        cells = [text for own, least in zip(mark, marks[0], strict=True) for text in (own, own - least)]
        table.add_row(name, *(f"{cell:.2f}" for cell in cells), *([f"{load[0]:.0f}", f"{load[1]:.1f}"] if load else []))
    Console().print(f"a prompt of {tokens} tokens, one token of answer, {ROUNDS} of each in turn")
    Console().print(table)


if __name__ == "__main__":
    asyncio.run(main())
