"""Exposed transfer time: how long decode waits for KV after the last layer of a prompt is computed.

    python -m benchmarks.exposed_transfer [--tokens 512 2048 8192] [--rounds 3] [--transport auto] [--json FILE]

A prompt is computed chunk by chunk on a random checkpoint of 12 layers with grouped heads, and its KV goes to another
process: layer by layer while the rest is computed ("streamed"), or all of it afterwards ("after"), which is the whole
transfer. Goal: the streamed wait does not grow with the prompt and is at most 15 % of the whole transfer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks._kv_child import Child
from benchmarks._kv_receiver import MIB
from common.engine.kv_cache import KvCache
from common.engine.layout import blocks_for
from common.engine.memory import kv_layout
from common.engine.runner import ModelRunner
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families import load_family
from common.kv.links import GrpcLinks
from common.kv.sender import KvPush
from common.kv.transport import Transport
from common.models.language import LanguageModel
from common.rpc.channels import Channels
from common.worker.heap import keep_freed_memory
from tests.checkpoints import build_checkpoint
from triptych.v1 import types_pb2

LAYERS = 12
BLOCK = 16
STEP_TOKENS = 512
Waits = dict[str, float]


class Bench:
    """A model with a cache here, a receiver in another process."""

    def __init__(self, model: Path, longest: int, channels: Channels, mode: str) -> None:
        self._family = load_family(model)
        language = LanguageModel.load(model, dtype=torch.float32, device=torch.device("cpu"))
        layout = kv_layout(language, BLOCK)
        self._cache = KvCache(layout, blocks_for(longest, BLOCK))
        self._runner = ModelRunner(language, self._cache)
        self._links, self._way = GrpcLinks(channels), Transport(layout, mode)  # type: ignore[arg-type]  # checked by argparse
        size_mib = -(-self._cache.num_blocks * layout.bytes_per_block // MIB)
        self.child = Child("kv", str(size_mib), json.dumps(asdict(layout)))
        self._thread = ThreadPoolExecutor(1)

    async def wait_s(self, tokens: int, streamed: bool) -> float:
        """Seconds from the last layer of the last chunk to the acknowledgement."""
        prompt = self._prompt(tokens)
        ticket = self.child.ticket(str(len(prompt.block_table)))
        push = KvPush(self._cache, ticket, prompt, self._links, self._way)
        while prompt.num_computed < tokens:
            await self._step(prompt, push, streamed)
        begin = time.perf_counter()
        push.ready(tokens)
        await push.finish(types_pb2.GeneratedToken())
        return time.perf_counter() - begin

    async def _step(self, prompt: Sequence, push: KvPush, streamed: bool) -> None:
        loop = asyncio.get_running_loop()
        count = min(STEP_TOKENS, prompt.num_uncomputed)
        end = prompt.num_computed + count

        def written(layer: int) -> None:
            if streamed:
                loop.call_soon_threadsafe(push.layer_ready, layer, end)

        await loop.run_in_executor(self._thread, self._runner.execute, [(prompt, count)], _no_image, written)

    def _prompt(self, tokens: int) -> Sequence:
        ids = [7 + n % 50 for n in range(tokens)]
        blocks = list(range(blocks_for(tokens, BLOCK)))
        positions = self._family.positions(tokens, [])
        return Sequence("bench", ids, positions, SamplingParams(temperature=0), block_table=blocks)


def _no_image(sequence: Sequence, index: int) -> dict[str, torch.Tensor]:
    return {}


async def measure(options: argparse.Namespace, model: Path) -> dict[int, Waits]:
    """Median waits in milliseconds, the two ways in turn."""
    channels = Channels()
    bench = Bench(model, max(options.tokens), channels, options.transport)
    await bench.wait_s(min(options.tokens), streamed=True)
    results: dict[int, Waits] = {}
    for tokens in options.tokens:
        rounds = [[await bench.wait_s(tokens, way) for way in (True, False)] for _ in range(options.rounds)]
        streamed, after = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
        results[tokens] = {"streamed_ms": streamed, "after_ms": after, "share": streamed / after}
    bench.child.close()
    await channels.close()
    return results


def table(results: dict[int, Waits]) -> str:
    """One row a prompt length."""
    lines = [f"{'tokens':>8}{'streamed ms':>14}{'after ms':>12}{'share':>8}"]
    for tokens, row in results.items():
        lines.append(f"{tokens:>8}{row['streamed_ms']:>14.1f}{row['after_ms']:>12.1f}{row['share']:>8.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transport", choices=["auto", "grpc", "shm"], default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as directory:
        model = build_checkpoint("qwen2_vl", Path(directory), layers=LAYERS, max_positions=16384)
        results = asyncio.run(measure(options, model))
    sys.stdout.write(
        f"wait after the last layer, median of {options.rounds}; goal: share at most 0.15\n{table(results)}\n"
    )
    if options.json:
        options.json.write_text(json.dumps({"transport": options.transport, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
