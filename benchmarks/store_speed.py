"""Writing and reading embeddings through our client against raw SET and GET of as many bytes, interleaved in one run.

    python -m benchmarks.store_speed [--rounds 7] [--mb 1 8 64]

Ours packs, hashes, accounts and verifies; raw is redis-py with bytes that are already there. The ratio is that of the
medians of both; rates are MiB/s.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import torch

from common.store.budget import Budget
from common.store.client import connect
from common.store.embeddings import EmbeddingStore
from tests.valkey import start_valkey

KEY = "b" * 64
WIDTH = 1024
Step = Callable[[], Awaitable[object]]


async def rates(steps: dict[str, Step], rounds: int, mebibytes: int) -> dict[str, float]:
    """MiB/s of each step, the median of `rounds`; the steps take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            begin = time.perf_counter()
            await step()
            seconds[name].append(time.perf_counter() - begin)
    return {name: mebibytes / statistics.median(times[1:]) for name, times in seconds.items()}


async def compare(url: str, mebibytes: int, rounds: int) -> dict[str, float]:
    """Rates of one size."""
    redis = connect(url)
    store = EmbeddingStore(redis, budget=Budget("refcount", 2**30))
    rows = mebibytes * 2**20 // (2 * WIDTH)
    tensors = {"embeddings": torch.randn(rows, WIDTH).bfloat16()}
    value = bytes(mebibytes * 2**20)
    steps: dict[str, Step] = {
        "raw write": lambda: redis.set("raw", value, px=60_000),
        "write": lambda: store.publish(KEY, "bench", tensors),
        "raw read": lambda: redis.get("raw"),
        "read": lambda: store.get(KEY, rows),
    }
    found = await rates(steps, rounds, mebibytes)
    await redis.aclose()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
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
