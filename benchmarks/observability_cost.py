"""What metrics, usage records, explanations and traces cost a router: several of them side by side, in turn.

The workers compute nothing, so the cost is larger here than in front of any real model. `quiet` leaves everything out,
`counted` is a router as it is started by default, `sampled` traces one request in a hundred, `traced` all of them.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field

import grpc
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks._router import Front, running_router
from triptych import AsyncClient

WORDS = 1000
TOKENS = 16
CONCURRENCY = 8
SLICE_S = 0.75
ROUNDS = 40
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class Variant:
    """One router and what was measured of it, a value a slice."""

    name: str
    front: Front
    client: AsyncClient
    rates: list[float] = field(default_factory=list)
    router_ms: list[float] = field(default_factory=list)
    cluster_ms: list[float] = field(default_factory=list)

    async def measure(self, number: int) -> None:
        """One slice."""
        done, ends = 0, time.perf_counter() + SLICE_S
        before = _cpu_s(self.front.process), _cpu_s(self.front.workers)
        began = time.perf_counter()

        async def ask(worker: int) -> None:
            nonlocal done
            while time.perf_counter() < ends:
                text = f"question {number} {worker} {done}: " + "red " * WORDS
                await self.client.generate(text, max_tokens=TOKENS, temperature=0, session_id=f"{worker}").answer()
                done += 1

        await asyncio.gather(*(ask(worker) for worker in range(CONCURRENCY)))
        self.rates.append(done / (time.perf_counter() - began))
        router, workers = _cpu_s(self.front.process) - before[0], _cpu_s(self.front.workers) - before[1]
        self.router_ms.append(router / done * 1000)
        self.cluster_ms.append((router + workers) / done * 1000)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def collector() -> Iterator[str]:
    """Takes spans and reads none of them, so that it costs the machine as little as possible."""
    server = grpc.server(ThreadPoolExecutor(1))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    service, _, method = EXPORT.strip("/").partition("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait()


async def main(rounds: int) -> None:
    """Measure in turn, and print."""
    with collector() as endpoint:
        async with AsyncExitStack() as stack:
            variants = []
            for name, module, more in (
                ("quiet", "benchmarks._quiet_router", ()),
                ("counted", "services.router", ()),
                ("sampled", "services.router", ("--otlp-endpoint", endpoint, "--trace-ratio", "0.01")),
                ("traced", "services.router", ("--otlp-endpoint", endpoint)),
            ):
                front = await stack.enter_async_context(running_router(workers=4, module=module, more=more))
                client = await stack.enter_async_context(AsyncClient(front.address))
                variants.append(Variant(name, front, client))
            for number in range(rounds + 1):
                # Another one begins each time: whoever comes first or last must not always be the same.
                begin = number % len(variants)
                for variant in (*variants[begin:], *variants[:begin]):
                    await variant.measure(number)
    show(variants)


def show(variants: list[Variant]) -> None:
    """Medians; ratios are medians of the ratios of neighbouring slices. The first round only warms up."""
    names = ("requests/s", "CPU ms of the router", "CPU ms of router and workers")
    table = Table("router", *(text for name in names for text in (name, "of quiet")))
    quiet = variants[0]
    for variant in variants:
        cells = []
        for name in ("rates", "router_ms", "cluster_ms"):
            mine, theirs = getattr(variant, name)[1:], getattr(quiet, name)[1:]
            ratio = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
            cells += [f"{statistics.median(mine):.2f}", f"{ratio:.3f}"]
        table.add_row(variant.name, *cells)
    Console().print(f"prompts of about {WORDS} tokens, {TOKENS} tokens of answer, {len(quiet.rates) - 1} slices each")
    Console().print(table)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS))
