"""Time to first token with a known picture, beside a new one and beside text of as many tokens, in one run.

    python -m benchmarks.warm_picture [--rounds 15] [--side 448]

A random Qwen2-VL checkpoint whose tower works several times as long on a picture as the language model. Every prompt
begins with other words, so that no KV is reused and only the embedding cache counts; all pictures are uploaded before
the clock starts. The three ways take turns. Goal: with a known picture the first token takes at most 1.05 of
the time that it takes with text.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.checkpoints import build_checkpoint
from tests.pictures import noise, save
from triptych import Client, Image
from triptych.answers import Delta, Started
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions
from triptych.messages import Part

WAYS = ("text", "known picture", "new picture")


@dataclass(frozen=True)
class First:
    """Seconds to the first token, and the length of the prompt."""

    seconds: float
    prompt_tokens: int


def ask(client: Client, parts: list[Part], salt: str | None = None) -> First:
    """Ask and read to the end; only the first token is timed."""
    begin, first, length = time.perf_counter(), 0.0, 0
    for event in client.generate(parts, max_tokens=2, temperature=0, ignore_eos=True, cache_salt=salt, timeout_s=120):
        if isinstance(event, Started):
            length = event.prompt_tokens
        if isinstance(event, Delta) and not first:
            first = time.perf_counter() - begin
    return First(first, length)


class Asker:
    """Asks in three ways; `number` makes every prompt begin with other words of the same length."""

    def __init__(self, client: Client, picture: Image) -> None:
        self._client, self._picture = client, picture
        self._words = self._as_long(ask(client, self._with_picture(0)).prompt_tokens)

    def text(self, number: int) -> First:
        """As many tokens, all of them text."""
        return ask(self._client, [self._opening(number) + self._words])

    def known(self, number: int) -> First:
        """The picture's embedding is there."""
        return ask(self._client, self._with_picture(number))

    def new(self, number: int) -> First:
        """The picture is uploaded, but was never encoded in this scope."""
        salt = f"round-{number}"
        self._client.put_image(self._picture, salt)
        return ask(self._client, self._with_picture(number), salt)

    def _with_picture(self, number: int) -> list[Part]:
        return [self._opening(number), self._picture, "What is this?"]

    def _opening(self, number: int) -> str:
        return f"{number:04d} "

    def _as_long(self, length: int) -> str:
        """Words that make a prompt of `length` tokens."""
        words = "a"
        while (found := ask(self._client, [self._opening(0) + words]).prompt_tokens) < length:
            words += " a" * max(1, (length - found) // 2)
        if found != length:
            raise SystemExit(f"no text has exactly {length} tokens, only {found}")
        return words


def measure(client: Client, side: int, rounds: int) -> dict[str, list[First]]:
    """The ways take turns; the first round only warms up."""
    asker = Asker(client, Image.from_bytes(save(noise(side, side), "PNG")))
    ways: dict[str, Callable[[int], First]] = dict(zip(WAYS, (asker.text, asker.known, asker.new), strict=True))
    found: dict[str, list[First]] = {name: [] for name in ways}
    for number in range(1, rounds + 2):
        for name, way in ways.items():
            found[name].append(way(number))
    return {name: firsts[1:] for name, firsts in found.items()}


def report(found: dict[str, list[First]]) -> None:
    """Print the table."""
    seconds = {name: [first.seconds for first in firsts] for name, firsts in found.items()}
    lengths = {first.prompt_tokens for firsts in found.values() for first in firsts}
    print(f"prompts of {lengths} tokens")
    print("| prompt | median, ms | ratio | fastest, ms | ratio |\n|---|---|---|---|---|")
    for name, times in seconds.items():
        print(f"| {name} | {_cells(statistics.median, times, seconds)} | {_cells(min, times, seconds)} |")


def _cells(pick: Callable[[list[float]], float], times: list[float], all_times: dict[str, list[float]]) -> str:
    return f"{pick(times) * 1000:.0f} | {pick(times) / pick(all_times['text']):.2f}"


def main() -> None:
    """Build the checkpoint, start a cluster, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--side", type=int, default=448, help="pixels; a square of 28 is one token")
    options = parser.parse_args()
    tokens = (options.side // 28) ** 2
    with tempfile.TemporaryDirectory() as directory:
        model = build_checkpoint("qwen2_vl", Path(directory) / "model", big=True, max_image_tokens=tokens)
        with LocalCluster(ClusterOptions(model)) as cluster, Client(cluster.grpc_address) as client:
            report(measure(client, options.side, options.rounds))


if __name__ == "__main__":
    main()
