"""`python -m benchmarks.router_peer PYTHON`: our router beside sglang-router, over HTTP, workers that answer at once.

PYTHON is an interpreter with `sglang-router` installed (PyPI); it is no part of our requirements. What is compared does
not do the same work: sglang-router, written in Rust, hands a request on to one worker that speaks HTTP; ours renders,
tokenizes, hashes and drives two workers over gRPC. Both see the same bodies, about a thousand tokens, one of answer.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks._router import MODEL, running_router
from benchmarks.router_cost import NUMBERS, question
from tests.valkey import free_port

ROUNDS = 300
THROUGHPUT_S = 8.0
CONCURRENCY = 16
FLAGS = ("--policy", "cache_aware", "--log-level", "error", "--disable-circuit-breaker")


@asynccontextmanager
async def running_peer(python: str) -> AsyncIterator[tuple[str, str, psutil.Process]]:
    """URLs of the worker and of sglang-router in front of it, and the router's process."""
    worker_port, port = free_port(), free_port()
    worker, url = f"http://127.0.0.1:{worker_port}", f"http://127.0.0.1:{port}"
    arguments = ["-m", "benchmarks._http_worker", str(worker_port), MODEL.name]
    first = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    flags = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker, *FLAGS]
    flags += ["--prometheus-port", str(free_port())]
    second = await asyncio.create_subprocess_exec(python, "-m", "sglang_router.launch_router", *flags)
    try:
        await _answers(url)
        yield worker, url, psutil.Process(second.pid)
    finally:
        for process in (first, second):
            process.kill()
            await process.wait()


async def _answers(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        for _ in range(600):
            try:
                if (await post(http, 0)).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


async def post(http: httpx.AsyncClient, number: int) -> httpx.Response:
    """One chat completion."""
    messages = [{"role": "user", "content": question(number)}]
    body = {"model": MODEL.name, "messages": messages, "max_tokens": 1, "temperature": 0}
    return await http.post("/v1/chat/completions", json=body)


async def latencies(*urls: str) -> list[float]:
    """Median milliseconds of each, taken in turn."""
    clients = [httpx.AsyncClient(base_url=url, timeout=30) for url in urls]
    times: list[list[float]] = [[] for _ in urls]
    for _ in range(ROUNDS):
        number = next(NUMBERS)
        for http, found in zip(clients, times, strict=True):
            began = time.perf_counter()
            (await post(http, number)).raise_for_status()
            found.append((time.perf_counter() - began) * 1000)
    for http in clients:
        await http.aclose()
    return [statistics.median(found) for found in times]


async def cpu_ms(url: str, process: psutil.Process) -> tuple[float, float]:
    """Requests/s at `CONCURRENCY`, and milliseconds of the process's CPU a request."""
    before, done, ends = process.cpu_times(), 0, time.perf_counter() + THROUGHPUT_S

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await post(http, next(NUMBERS))
            done += 1

    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        await asyncio.gather(*(client(http) for _ in range(CONCURRENCY)))
    after = process.cpu_times()
    return done / THROUGHPUT_S, (after.user + after.system - before.user - before.system) / done * 1000


async def main(python: str) -> None:
    """Measure and print."""
    table = Table("router", "p50 ms", "requests/s", "CPU ms a request")
    async with running_router(workers=4) as front, running_peer(python) as (worker, url, process):
        ours, theirs, none = await latencies(front.url, url, worker)
        table.add_row("none: the HTTP worker itself", f"{none:.1f}", "", "")
        for name, median, at, of in (("sglang-router", theirs, url, process), ("ours", ours, front.url, front.process)):
            rate, cpu = await cpu_ms(at, of)
            table.add_row(name, f"{median:.1f}", f"{rate:.0f}", f"{cpu:.2f}")
    Console().print(table)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(main(sys.argv[1]))
    else:
        Console().print(f"needs an interpreter with sglang-router: {__doc__.partition(':')[0] if __doc__ else ''}")
