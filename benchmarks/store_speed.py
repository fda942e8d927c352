"""Writing and reading embeddings through our client against raw SET and GET of as many bytes, interleaved in one run.

    python -m benchmarks.store_speed [--rounds 40] [--mb 1 8 64]

Ours packs, hashes, accounts and verifies; raw is redis-py as it comes, with bytes already there. Rates are MiB/s, those
of the best of all rounds: other work on the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

import torch
from redis.asyncio import Redis

from common.store import codec
from common.store.budget import Budget
from common.store.client import connect
from common.store.embeddings import EmbeddingStore
from tests.stored import publish
from tests.valkey import start_valkey

KEY = "b" * 64
WIDTH = 1024
Step = Callable[[], Awaitable[object]]


async def rates(steps: dict[str, Step], rounds: int, mebibytes: int) -> dict[str, float]:
    """MiB/s of each step, the best of `rounds`; the steps take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            await step()
            seconds[name].append(time.perf_counter() - begin)
    return {name: mebibytes / min(times) for name, times in seconds.items()}


async def compare(url: str, mebibytes: int, rounds: int) -> dict[str, float]:
    """Rates of one size."""
    redis, raw = connect(url), Redis.from_url(url, socket_timeout=None)
    store = EmbeddingStore(redis, budget=Budget("refcount", 2**30))
    rows = mebibytes * 2**20 // (2 * WIDTH)
    tensors = {"embeddings": torch.randn(rows, WIDTH).bfloat16()}
    # The same bytes: a block of zeros would be one page of memory, and much quicker to send.
    value = bytes(codec.pack(KEY, tensors))
    steps: dict[str, Step] = {
        "raw write": lambda: raw.set("raw", value, px=60_000),
        "write": lambda: publish(store, KEY, "bench", tensors),
        "raw read": lambda: raw.get("raw"),
        "read": lambda: store.get(KEY, rows),
    }
    found = await rates(steps, rounds, mebibytes)
    for link in (redis, raw):
        await link.aclose()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--mb", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| MiB | write | raw write | ratio | read | raw read | ratio |\n|---|---|---|---|---|---|---|")
    with start_valkey() as url:
        for size in options.mb:
            rate = asyncio.run(compare(url, size, options.rounds))
            write, read = rate["write"] / rate["raw write"], rate["read"] / rate["raw read"]
            figures = f"{rate['write']:.0f} | {rate['raw write']:.0f} | {write:.2f}"
            print(f"| {size} | {figures} | {rate['read']:.0f} | {rate['raw read']:.0f} | {read:.2f} |")


if __name__ == "__main__":
    main()
