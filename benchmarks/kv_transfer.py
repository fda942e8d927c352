"""Transfer rate of KV between two processes: our gRPC stream and shared memory beside a plain TCP socket and memcpy.

    python -m benchmarks.kv_transfer [--sizes 1 16 128 512] [--rounds 3] [--json FILE]

All ways run in turn, round after round, so that a busy machine slows them alike; the table shows the best round.
Goals: gRPC at least 0.6 of the socket, shared memory at least 0.5 of memcpy. "bare" is a gRPC stream whose receiver
does nothing with the bytes, the most that gRPC gives; the line below the table shows the copies at both ends alone.

Every way moves the whole size from memory that is there into memory that is there, allocated alike, and every way has
its connection or stream open when the clock starts: prefill opens its stream before it computes the first layer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._kv_child import Child
from benchmarks._kv_receiver import LAYOUT, MIB, cache_of, touched
from benchmarks._kv_transfer_parts import OPENING_S, copies, over_bare_stream
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import Positions
from common.kv.links import GrpcLinks, Links
from common.kv.sender import KvPush
from common.kv.transport import Transport
from common.rpc.channels import Channels
from common.worker.heap import keep_freed_memory
from triptych.v1 import types_pb2

WAYS = ("socket", "bare", "grpc", "memcpy", "shm")
GOALS = {"grpc": ("socket", 0.6), "shm": ("memcpy", 0.5)}
Rates = dict[str, float]
Buffer = NDArray[np.uint8]
Way = Callable[[], Awaitable[float]]


def prompt_of(size_mib: int) -> Sequence:
    """A prompt whose KV is the whole cache."""
    count = size_mib * MIB // LAYOUT.bytes_per_block
    length = count * LAYOUT.block_size
    positions = Positions(np.zeros((1, length), dtype=np.int64), length)
    return Sequence("bench", [1] * length, positions, SamplingParams(temperature=0), block_table=list(range(count)))


async def over_socket(link: socket.socket, source: Buffer) -> float:
    """Seconds to move the bytes through a TCP connection and hear that they are there."""
    begin = time.perf_counter()
    link.sendall(source.data)
    link.recv(1)
    return time.perf_counter() - begin


async def by_memcpy(source: Buffer, target: Buffer) -> float:
    """Seconds to copy the bytes once within this process."""
    begin = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - begin


async def by_push(child: Child, size_mib: int, links: Links, way: Transport) -> float:
    """Seconds of a transfer as prefill makes it, acknowledgement included."""
    ticket = child.ticket()
    cache, prompt = cache_of(size_mib), prompt_of(size_mib)
    push = KvPush(cache, ticket, prompt, links, way)
    await asyncio.sleep(OPENING_S)
    begin = time.perf_counter()
    push.ready(prompt.num_prompt)
    await push.finish(types_pb2.GeneratedToken())
    return time.perf_counter() - begin


async def measure(size_mib: int, rounds: int) -> tuple[Rates, Rates]:
    """Of each way the best rate in GB/s, and the processor time of both ends in ms a MiB."""
    best, spent = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0)
    async with AsyncExitStack() as stack:
        children = {kind: Child(kind, str(size_mib)) for kind in ("socket", "kv")}
        for child in children.values():
            stack.callback(child.close)
        ways = await _open(size_mib, children, stack)
        for way in ways.values():
            await way()
        for name in WAYS * rounds:
            before = _cpu_s(children)
            best[name] = max(best[name], size_mib * MIB / await ways[name]() / 1e9)
            spent[name] += (_cpu_s(children) - before) * 1000 / rounds / size_mib
    return best, spent


def _cpu_s(children: dict[str, Child]) -> float:
    return time.process_time() + sum(child.cpu_s() for child in children.values())


async def _open(size_mib: int, children: dict[str, Child], stack: AsyncExitStack) -> dict[str, Way]:
    channels = Channels()
    stack.push_async_callback(channels.close)
    links = GrpcLinks(channels)
    link = stack.enter_context(socket.create_connection(("127.0.0.1", int(children["socket"].ask()))))
    source, target = touched(size_mib), touched(size_mib)
    grpc, shm = Transport(LAYOUT, "grpc"), Transport(LAYOUT, "shm")
    return {
        "socket": lambda: over_socket(link, source),
        "bare": lambda: over_bare_stream(children["kv"], channels, size_mib),
        "memcpy": lambda: by_memcpy(source, target),
        "grpc": lambda: by_push(children["kv"], size_mib, links, grpc),
        "shm": lambda: by_push(children["kv"], size_mib, links, shm),
    }


def table(results: dict[int, tuple[Rates, Rates]]) -> str:
    """Rates in GB/s, the two ratios that have goals, and milliseconds of a transfer; then processor time."""
    ratios = "".join(f"{f'{way}/{base}':>13}" for way, (base, _) in GOALS.items())
    lines = [f"{'MiB':>6}" + "".join(f"{name:>9}" for name in WAYS) + ratios + f"{'grpc ms':>10}{'shm ms':>9}"]
    for size, (rates, _) in results.items():
        cells = "".join(f"{rates[name]:>9.2f}" for name in WAYS)
        ratios = "".join(f"{rates[way] / rates[base]:>13.2f}" for way, (base, _) in GOALS.items())
        grpc_ms, shm_ms = (size * MIB / rates[way] / 1e6 for way in GOALS)
        lines.append(f"{size:>6}{cells}{ratios}{grpc_ms:>10.1f}{shm_ms:>9.1f}")
    lines.append("processor time of both ends, ms a MiB")
    for size, (_, spent) in results.items():
        lines.append(f"{size:>6}" + "".join(f"{spent[name]:>9.2f}" for name in WAYS))
    return "\n".join(lines)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 128, 512], help="MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    results = {size: asyncio.run(measure(size, options.rounds)) for size in options.sizes}
    parts = copies()
    sys.stdout.write(f"GB/s, best of {options.rounds}; goals: grpc/socket 0.6, shm/memcpy 0.5\n{table(results)}\n")
    sys.stdout.write("alone: " + ", ".join(f"{name} {rate:.1f}" for name, rate in parts.items()) + "\n")
    if options.json:
        rates, spent = ({size: each[index] for size, each in results.items()} for index in (0, 1))
        report = {"rates_gb_s": rates, "cpu_ms_per_mib": spent, "alone_gb_s": parts}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
