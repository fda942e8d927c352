"""What a worker's block bookkeeping costs in a pool of 100,000 blocks: allocation, lookup and eviction.

    python -m benchmarks.block_bookkeeping [--blocks 100000] [--json FILE]

Microseconds per block in the mean, best of 3, beside the same in a pool of a hundredth: what costs O(pool) shows as a
ratio far above 1. Goal: each under 20 microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common.engine.blocks import BlockPool
from common.engine.prefix_cache import PrefixCache
from common.identity.blocks import BlockChain

PROMPT = 64
"""Blocks of one prompt: how many are named in one call."""
BLOCK = 16
ROUNDS = 3
Costs = dict[str, float]


class Bench:
    """A pool, and prompts that together fill it."""

    def __init__(self, blocks: int) -> None:
        self._count = blocks // PROMPT
        self._chains = [self._chain(number) for number in range(2 * self._count)]
        self._cache = PrefixCache(BlockPool(self._count * PROMPT))
        self._tables: list[list[int]] = []

    @staticmethod
    def _chain(number: int) -> list[bytes]:
        chain = BlockChain(number.to_bytes(8, "little"), BLOCK)
        chain.extend(range(PROMPT * BLOCK))
        return chain.hashes

    def run(self) -> Costs:
        """Microseconds per block of each operation, in the order in which a pool lives through them."""
        steps = [self.allocate, self.publish, self.free, self.lookup, self.share, self.free, self.evict]
        costs = {step.__name__: self._time(step) for step in steps}
        self._cache.free([block for table in self._tables for block in table])
        self._cache.validate()
        return costs

    def allocate(self) -> None:
        """Take every block of an empty pool."""
        self._tables = [self._cache.allocate(PROMPT) for _ in range(self._count)]

    def publish(self) -> None:
        """Make every block findable."""
        for table, hashes in zip(self._tables, self._chains, strict=False):
            for block, block_hash in zip(table, hashes, strict=True):
                self._cache.publish(block, block_hash)

    def free(self) -> None:
        """Give every block back: it stays cached."""
        for table in self._tables:
            self._cache.free(table)

    def lookup(self) -> None:
        """Find every prefix again."""
        for hashes in self._chains[: self._count]:
            self._cache.match(hashes)

    def share(self) -> None:
        """Take the cached blocks."""
        for table in self._tables:
            self._cache.share(table)

    def evict(self) -> None:
        """Allocate where everything is cached: each block is evicted first."""
        self._tables = [self._cache.allocate(PROMPT) for _ in range(self._count)]

    def _time(self, step: Callable[[], None]) -> float:
        begin = time.perf_counter()
        step()
        return 1e6 * (time.perf_counter() - begin) / (self._count * PROMPT)


def best(blocks: int) -> Costs:
    """The cheapest of `ROUNDS` for each operation."""
    rounds = [Bench(blocks).run() for _ in range(ROUNDS)]
    return {name: min(costs[name] for costs in rounds) for name in rounds[0]}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    small, large = best(max(PROMPT, options.blocks // 100)), best(options.blocks)
    lines = [f"{'operation':<12}{'small pool, us':>16}{'large pool, us':>16}{'ratio':>8}"]
    lines += [f"{name:<12}{small[name]:>16.2f}{cost:>16.2f}{cost / small[name]:>8.2f}" for name, cost in large.items()]
    sys.stdout.write(f"microseconds per block at {options.blocks} blocks; goal: under 20\n" + "\n".join(lines) + "\n")
    if options.json:
        options.json.write_text(json.dumps({"small": small, "large": large}, indent=1) + "\n")


if __name__ == "__main__":
    main()
