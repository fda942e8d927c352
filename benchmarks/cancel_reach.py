"""How long a stage works on after a request was ended: by its client, by a lost connection, by its deadline.

Real processes of the demo model. A request with a new picture and a long new prompt is ended a random moment after a
stage took it up; every stage is asked for its load without a pause until it holds neither a request nor a block. The
time counts from the end of the request to the answer that says so, so it includes the questions' own way.
"""

from __future__ import annotations

import asyncio
import base64
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from tests.pictures import noise, save
from triptych import AsyncClient, Image
from triptych.channel import open_channel
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions, default_model
from triptych.errors import DeadlineExceededError
from triptych.v1.worker_pb2 import GetLoadRequest
from triptych.v1.worker_pb2_grpc import WorkerServiceStub

STAGES = ("encoder", "prefill", "decode")
ROUNDS = 20
LATEST_S = 0.1
WORDS, TOKENS = 300, 1000
Samples = dict[tuple[str, str], list[float]]


class Watch:
    """One stage, asked over and over: whether it holds anything, and when it last stopped."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.busy, self.freed_at = False, 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            load = await self._stub.GetLoad(GetLoadRequest())
            busy = bool(load.running_requests or load.waiting_requests or load.pending_tokens or load.blocks_in_use)
            if self.busy and not busy:
                self.freed_at = time.perf_counter()
            self.busy = busy
            await asyncio.sleep(0.001)


class Bench:
    """Asks and ends requests; `samples` are seconds by way and stage."""

    def __init__(self, cluster: LocalCluster, client: AsyncClient, http: httpx.AsyncClient) -> None:
        self._client, self._http, self._url = client, http, f"{cluster.http_url}/v1/chat/completions"
        self._rng = random.Random(1)
        self._onset: dict[str, list[float]] = defaultdict(list)
        self.watches: dict[str, Watch] = {}
        self.samples: Samples = defaultdict(list)

    async def end(self, way: str, stage: str) -> None:
        """One request, ended soon after `stage` took it up."""
        later = self._rng.random() * LATEST_S
        left_s = statistics.median(self._onset[stage]) + later if way == "deadline" else None
        picture = save(noise(800, 600, seed=self._rng.randrange(2**31)), "PNG")
        words = " ".join(str(self._rng.randrange(1000)) for _ in range(WORDS))
        begun = time.perf_counter()
        ask = self._ask_http(picture, words) if way == "disconnect" else self._ask_grpc(picture, words, left_s)
        asking = asyncio.create_task(ask)
        if left_s is None:
            await until(lambda: self.watches[stage].busy or asking.done())
            self._onset[stage].append(time.perf_counter() - begun)
            await asyncio.sleep(later)
            ended = time.perf_counter()
            asking.cancel()
        else:
            ended = begun + left_s
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.result()
        await until(lambda: not any(watch.busy for watch in self.watches.values()))
        for name, watch in self.watches.items():
            if watch.freed_at > ended:
                self.samples[way, name].append(watch.freed_at - ended)

    async def _ask_grpc(self, picture: bytes, words: str, left_s: float | None) -> None:
        asked: list[Image | str] = [Image.from_bytes(picture), words]
        stream = self._client.generate(asked, max_tokens=TOKENS, ignore_eos=True, timeout_s=left_s)
        try:
            await stream.answer()
        except DeadlineExceededError:
            return

    async def _ask_http(self, picture: bytes, words: str) -> None:
        url = "data:image/png;base64," + base64.b64encode(picture).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": words}]
        fields = {"max_tokens": TOKENS, "ignore_eos": True}
        answer = await self._http.post(self._url, json={"messages": [{"role": "user", "content": content}], **fields})
        answer.raise_for_status()


async def until(holds: Callable[[], object]) -> None:
    """Wait for what the watches say."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - set by other tasks
            await asyncio.sleep(0.001)


@asynccontextmanager
async def watched(cluster: LocalCluster, bench: Bench) -> AsyncIterator[None]:
    """Watch all stages."""
    async with AsyncExitStack() as channels, asyncio.TaskGroup() as group:
        for part in cluster.parts:
            if part.name in STAGES:
                channel = await channels.enter_async_context(open_channel(part.address))
                bench.watches[part.name] = Watch(WorkerServiceStub(channel))
        tasks = [group.create_task(watch.run()) for watch in bench.watches.values()]
        yield
        for task in tasks:
            task.cancel()


def report(samples: Samples) -> None:
    """Print the table."""
    table = Table(
        "ended by", "stage", "ended in it", "p50, ms", "p99, ms", "longest, ms", title="Until a stage is free"
    )
    for (way, stage), seconds in sorted(samples.items()):
        ordered = sorted(seconds)
        at = [ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]]
        table.add_row(way, stage, str(len(ordered)), *(f"{each * 1000:.0f}" for each in at))
    Console().print(table)


async def main(rounds: int = ROUNDS) -> None:
    """Every way in every stage, one after another."""
    options = ClusterOptions(default_model(), log_level="WARNING")
    with LocalCluster(options) as cluster:
        async with AsyncClient(cluster.grpc_address) as client, httpx.AsyncClient(timeout=60) as http:
            bench = Bench(cluster, client, http)
            async with watched(cluster, bench):
                for _ in range(rounds):
                    for way in ("cancel", "disconnect", "deadline"):
                        for stage in STAGES:
                            await bench.end(way, stage)
    report(bench.samples)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:2])))
