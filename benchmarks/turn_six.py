"""Time to first token of a conversation's sixth turn, with and without fetching KV back from decode.

    python -m benchmarks.turn_six [--answer 192] [--question 32] [--rounds 3] [--json FILE]

Decode keeps the KV of the answers it generated. In turn six that is fetched ("pull") or computed anew ("compute"), by
the prefill worker of the five turns before, which has their prompts cached, and by one that has nothing. Random
checkpoint of 25 M parameters in the language half, on gRPC or shared memory as the workers choose. Goal: 3 times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch

from services.decode import __main__ as decode_main
from services.decode.settings import DecodeSettings
from services.prefill import __main__ as prefill_main
from services.prefill.settings import PrefillSettings
from tests.checkpoints import build_checkpoint
from tests.valkey import start_valkey
from tests.workers import Pair, running
from triptych.v1 import decode_pb2, types_pb2

TURNS = 6
SAME, OTHER = "the same prefill worker", "another prefill worker"
WAYS = {"pull": "always", "compute": "never"}
Times = dict[str, dict[str, float]]


class Conversation:
    """One conversation in a cache scope of its own; its turns go to `pair` unless another is named."""

    def __init__(self, pair: Pair, question: int, answer: int) -> None:
        self._pair, self._question, self._answer = pair, question, answer
        self._scope = secrets.token_hex(32)
        self._history: list[int] = []

    async def turn(self) -> None:
        """Ask, and remember the answer."""
        answer = await self._pair.ask(self._next(0), greedy(self._answer))
        self._history = [*self._asked, *answer.token_ids]

    async def first_token_s(self, pair: Pair, salt: int) -> float:
        """Seconds until the first token of one more turn, which is not remembered; `salt` makes its question new."""
        prompt = self._next(salt)
        begin = time.perf_counter()
        call: Any = pair.decode.Decode(decode_pb2.DecodeRequest(prompt=prompt, sampling=greedy(2)))
        prefill = asyncio.create_task(pair.run_prefill(prompt, greedy(2), (await call.read()).ticket))
        await call.read()
        elapsed = time.perf_counter() - begin
        await prefill
        call.cancel()
        return elapsed

    def _next(self, salt: int) -> types_pb2.Prompt:
        first = len(self._history) + 41 * salt
        self._asked = [*self._history, *(10 + (first + 7 * n) % 200 for n in range(self._question))]
        prompt = self._pair.prompt(self._asked)
        prompt.cache_scope = self._scope
        return prompt


def greedy(tokens: int) -> types_pb2.SamplingParams:
    """Exactly `tokens` tokens."""
    return types_pb2.SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


async def measure(options: argparse.Namespace, model: Path, redis_url: str) -> Times:
    """Median milliseconds for each worker and way, the ways in turn."""
    found: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in WAYS} for kind in (SAME, OTHER)}
    async with pairs(model, redis_url) as by_way:
        # The first round only warms up.
        for number in range(options.rounds + 1):
            for way, (same, other) in by_way.items():
                talk = Conversation(same, options.question, options.answer)
                for _ in range(TURNS - 1):
                    await talk.turn()
                for salt, (kind, pair) in enumerate({SAME: same, OTHER: other}.items(), 1):
                    seconds = await talk.first_token_s(pair, salt)
                    found[kind][way] += [1000 * seconds] if number else []
    return {kind: {way: statistics.median(each) for way, each in ways.items()} for kind, ways in found.items()}


@contextlib.asynccontextmanager
async def pairs(model: Path, redis_url: str) -> AsyncIterator[dict[str, list[Pair]]]:
    """For each way two prefill workers with one decode worker."""
    common = {"model": model, "redis_url": redis_url, "blocks": 512, "drain_grace_s": 1.0}
    workers = []
    for pull in WAYS.values():
        workers += [prefill_main.build(PrefillSettings.model_validate({**common, "pull": pull})) for _ in range(2)]
        workers.append(decode_main.build(DecodeSettings.model_validate(common)))
    async with running(workers) as channels:
        yield {
            way: [Pair(model, redis_url, channels[3 * n + index], channels[3 * n + 2]) for index in range(2)]
            for n, way in enumerate(WAYS)
        }


def table(times: Times) -> str:
    """One row a worker."""
    lines = [f"{'turn 6 goes to':<26}{'pull, ms':>10}{'compute, ms':>13}{'ratio':>8}"]
    for kind, row in times.items():
        ratio = row["compute"] / row["pull"]
        lines.append(f"{kind:<26}{row['pull']:>10.0f}{row['compute']:>13.0f}{ratio:>8.1f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", type=int, default=192)
    parser.add_argument("--question", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, start_valkey() as redis_url:
        model = build_checkpoint("qwen2_vl", Path(directory), big=True, max_positions=4096)
        times = asyncio.run(measure(options, model, redis_url))
    sys.stdout.write(f"first token of turn {TURNS}, median of {options.rounds}; goal: ratio 3\n{table(times)}\n")
    if options.json:
        options.json.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
