"""Transfer rate of KV between two processes: our gRPC stream and shared memory beside a plain TCP socket and memcpy.

    python -m benchmarks.kv_transfer [--sizes 1 16 128 512] [--rounds 3] [--json FILE]

All four ways run in turn, round after round, so that a busy machine slows them alike; the table shows the best round.
Goals: gRPC at least 0.6 of the socket, shared memory at least 0.5 of memcpy.
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

from benchmarks.kv_child import Child
from benchmarks.kv_receiver import LAYOUT, MIB, cache_of
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import Positions
from common.kv.links import GrpcLinks
from common.kv.sender import KvPush
from common.kv.staging import KvTransport
from common.kv.transport import Transport
from common.rpc.channels import Channels
from triptych.v1 import kv_pb2, types_pb2

WAYS = ("socket", "grpc", "memcpy", "shm")
MODES: tuple[KvTransport, ...] = ("grpc", "shm")
GOALS = {"grpc": ("socket", 0.6), "shm": ("memcpy", 0.5)}
Rates = dict[str, float]


def prompt_of(size_mib: int) -> Sequence:
    """A prompt whose KV is the whole cache."""
    count = size_mib * MIB // LAYOUT.bytes_per_block
    length = count * LAYOUT.block_size
    positions = Positions(np.zeros((1, length), dtype=np.int64), length)
    return Sequence("bench", [1] * length, positions, SamplingParams(temperature=0), block_table=list(range(count)))


async def over_socket(child: Child, size_mib: int) -> float:
    """Seconds to move the bytes through a TCP connection and hear that they are there."""
    port, data = int(child.ask()), bytes(MIB)
    with socket.create_connection(("127.0.0.1", port)) as link:
        begin = time.perf_counter()
        for _ in range(size_mib):
            link.sendall(data)
        link.recv(1)
        return time.perf_counter() - begin


async def by_memcpy(size_mib: int) -> float:
    """Seconds to copy the bytes once within this process, in pages that are there."""
    source, target = np.ones((2, size_mib * MIB), dtype=np.uint8)
    begin = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - begin


async def by_push(child: Child, size_mib: int, way: Transport) -> float:
    """Seconds of a transfer as prefill makes it, acknowledgement included."""
    ticket = kv_pb2.KvTicket.FromString(bytes.fromhex(child.ask()))
    cache, prompt = cache_of(size_mib), prompt_of(size_mib)
    begin = time.perf_counter()
    push = KvPush(cache, ticket, prompt, way)
    push.ready(prompt.num_prompt)
    await push.finish(types_pb2.GeneratedToken())
    return time.perf_counter() - begin


async def measure(size_mib: int, rounds: int) -> Rates:
    """Best rate of each way in GB/s."""
    best: Rates = {}
    async with AsyncExitStack() as stack:
        ways = await _open(size_mib, stack)
        for _ in range(rounds):
            for name in WAYS:
                rate = size_mib * MIB / await ways[name]() / 1e9
                best[name] = max(best.get(name, 0.0), rate)
    return best


async def _open(size_mib: int, stack: AsyncExitStack) -> dict[str, Callable[[], Awaitable[float]]]:
    channels = Channels()
    stack.push_async_callback(channels.close)
    children = {kind: Child(kind, str(size_mib)) for kind in ("socket", "kv")}
    for child in children.values():
        stack.callback(child.close)
    modes: dict[KvTransport, Transport] = {}
    for mode in MODES:
        modes[mode] = Transport(GrpcLinks(channels), LAYOUT, mode)
    return {
        "socket": lambda: over_socket(children["socket"], size_mib),
        "memcpy": lambda: by_memcpy(size_mib),
        "grpc": lambda: by_push(children["kv"], size_mib, modes["grpc"]),
        "shm": lambda: by_push(children["kv"], size_mib, modes["shm"]),
    }


def table(results: dict[int, Rates]) -> str:
    """Rates in GB/s and the two ratios that have goals."""
    lines = [f"{'MiB':>6}" + "".join(f"{name:>9}" for name in WAYS) + f"{'grpc/socket':>13}{'shm/memcpy':>12}"]
    for size, rates in results.items():
        ratios = [rates[way] / rates[base] for way, (base, _) in GOALS.items()]
        cells = "".join(f"{rates[name]:>9.2f}" for name in WAYS)
        lines.append(f"{size:>6}{cells}{ratios[0]:>13.2f}{ratios[1]:>12.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 128, 512], help="MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {size: asyncio.run(measure(size, options.rounds)) for size in options.sizes}
    sys.stdout.write(f"GB/s, best of {options.rounds}; goals: grpc/socket 0.6, shm/memcpy 0.5\n{table(results)}\n")
    if options.json:
        options.json.write_text(json.dumps({"unit": "GB/s", "rates": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
