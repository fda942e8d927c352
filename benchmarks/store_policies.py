"""Hit rates of the two eviction policies and of the clairvoyant optimum on one Zipf stream, through a real server.

    python -m benchmarks.store_policies [--requests 2500] [--pictures 400] [--exponent 0.9] [--share 0.25]

The store holds `share` of the working set. Each request names 1 to 4 pictures of various sizes, and some requests live
longer than others: with `refcount` they keep their pictures from being evicted, which is what it costs to never take
away what a request needs. The optimum (Belady 1966, here by bytes: the entry whose next use is farthest goes first)
knows the future, and may also decline to store.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from common.store.budget import Budget, Policy
from common.store.client import connect, embedding_key
from common.store.embeddings import EmbeddingStore, Reservation
from tests.valkey import start_valkey

NEVER = 10**9


@dataclass(frozen=True)
class Trace:
    """`requests[i]` are picture numbers; `sizes[picture]` bytes of its embedding; `lives[i]` requests that it lasts."""

    requests: list[list[int]]
    sizes: list[int]
    lives: list[int]

    @property
    def working_set(self) -> int:
        """Bytes of all pictures that occur."""
        return sum(self.sizes[picture] for picture in set(itertools.chain(*self.requests)))


def zipf_trace(requests: int, pictures: int, exponent: float, seed: int = 7) -> Trace:
    """Popularity falls with rank to the power of `exponent`; sizes are log-uniform over a factor of 16."""
    chance = random.Random(seed)
    weights = [1 / rank**exponent for rank in range(1, pictures + 1)]
    sizes = [int(512 * 2 ** chance.uniform(0, 4)) for _ in range(pictures)]
    drawn = (chance.choices(range(pictures), weights, k=chance.randint(1, 4)) for _ in range(requests))
    return Trace(
        [list(dict.fromkeys(names)) for names in drawn],
        sizes,
        [chance.choice((1, 8, 64, 256)) for _ in range(requests)],
    )


def optimum(trace: Trace, capacity: int) -> float:
    """Share of hits when the future is known."""
    stream = list(itertools.chain(*trace.requests))
    following = _next_uses(stream)
    held: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    used = hits = 0
    for at, picture in enumerate(stream):
        hits += picture in held
        used += 0 if picture in held else trace.sizes[picture]
        held[picture] = following[at]
        heapq.heappush(farthest, (-following[at], picture))
        while used > capacity:
            use, victim = heapq.heappop(farthest)
            if held.get(victim) == -use:
                del held[victim]
                used -= trace.sizes[victim]
    return hits / len(stream)


def _next_uses(stream: Sequence[int]) -> list[int]:
    following, seen = [NEVER] * len(stream), dict[int, int]()
    for at in range(len(stream) - 1, -1, -1):
        following[at] = seen.get(stream[at], NEVER)
        seen[stream[at]] = at
    return following


@dataclass
class Outcome:
    """`taken` counts pictures that were not there when a request that needs them ended: evicted, or never stored."""

    hit_rate: float = 0.0
    evictions: int = 0
    taken: int = 0
    refused: int = 0


async def measured(trace: Trace, capacity: int, policy: Policy, url: str) -> Outcome:
    """The stream through our client."""
    redis = connect(url)
    await redis.flushdb()
    store = EmbeddingStore(redis, budget=Budget(policy, capacity, lease_s=3600.0))
    outcome, hits = Outcome(), 0
    # Running requests as (step at which it ends, number).
    running: list[tuple[int, int]] = []
    for step, pictures in enumerate(trace.requests):
        while running and running[0][0] <= step:
            outcome.taken += await _end(store, redis, trace, heapq.heappop(running)[1])
        for picture in pictures:
            hits += await _use(store, trace, picture, f"request{step}")
        heapq.heappush(running, (step + trace.lives[step], step))
    await redis.aclose()
    outcome.hit_rate = hits / sum(map(len, trace.requests))
    outcome.evictions, outcome.refused = store.counters.evictions, store.counters.refused
    return outcome


async def _end(store: EmbeddingStore, redis: Redis, trace: Trace, request: int) -> int:
    """The request is over; how many of its pictures were not there to the end."""
    for picture in trace.requests[request]:
        await store.unlease(_key(picture), f"request{request}")
    names = [embedding_key(_key(picture)) for picture in trace.requests[request]]
    return len(names) - int(await redis.exists(*names))


async def _use(store: EmbeddingStore, trace: Trace, picture: int, request: str) -> bool:
    key = _key(picture)
    if await store.reserve(key, "bench", 10, request) is Reservation.READY:
        await store.touch(key)
        return True
    await store.put(key, "bench", bytes(trace.sizes[picture]), request)
    return False


def _key(picture: int) -> str:
    return f"{picture:064x}"


def rows(trace: Trace, share: float, url: str) -> Iterator[str]:
    """The table, line by line."""
    capacity = int(trace.working_set * share)
    yield "| policy | hit rate | of the optimum | evictions | gone before its request ended | no room |"
    yield "|---|---|---|---|---|---|"
    best = optimum(trace, capacity)
    policies: tuple[Policy, ...] = ("lru", "refcount")
    for policy in policies:
        one = asyncio.run(measured(trace, capacity, policy, url))
        figures = f"{one.hit_rate:.3f} | {one.hit_rate / best:.0%} | {one.evictions} | {one.taken} | {one.refused}"
        yield f"| `{policy}` | {figures} |"
    yield f"| clairvoyant | {best:.3f} | 100% | | | |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--exponent", type=float, default=0.9)
    parser.add_argument("--share", type=float, default=0.25)
    options = parser.parse_args()
    trace = zipf_trace(options.requests, options.pictures, options.exponent)
    with start_valkey() as url:
        for line in rows(trace, options.share, url):
            print(line)


if __name__ == "__main__":
    main()
