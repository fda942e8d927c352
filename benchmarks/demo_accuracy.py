"""The demo model on held-out questions, through a cluster and through plain transformers: shares of exact answers.

`python -m benchmarks.demo_accuracy [COUNT]`; exit status 1 when an answer differs between the two, or fewer than
90 % are right.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from rich.console import Console
from rich.table import Table

from models.training.evaluate import LONGEST_ANSWER, Reference
from models.training.held_out import Item, Tally, held_out
from triptych import Client, Image
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions, default_model

GOAL = 0.9
SEED = 1


@dataclass(frozen=True)
class Comparison:
    """Both tallies, and the questions whose answers differ."""

    cluster: Tally
    plain: Tally
    different: list[tuple[Item, str, str]]

    @property
    def good(self) -> bool:
        """True if the answers are equal and enough of them right."""
        return not self.different and self.cluster.shares()["all"] >= GOAL


def to_messages(item: Item) -> list[dict[str, Any]]:
    """The item's chat with its pictures in place of the markers."""
    pictures = iter(item.images)

    def part(found: Any) -> Any:
        return png(next(pictures)) if found["type"] == "image" else found["text"]

    return [
        {
            "role": message["role"],
            "content": message["content"]
            if isinstance(message["content"], str)
            else [part(found) for found in message["content"]],
        }
        for message in item.messages
    ]


def png(picture: Pillow.Image) -> Image:
    """A picture as a client sends it."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return Image.from_bytes(buffer.getvalue())


def cluster_answers(client: Client, items: list[Item], at_once: int = 4) -> Iterator[str]:
    """Answers in order, several requests at a time."""

    def ask(item: Item) -> str:
        return client.generate(to_messages(item), max_tokens=LONGEST_ANSWER, temperature=0, timeout_s=120).answer().text

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(ask, items)


def compare(client: Client, model: Path, count: int, seed: int = SEED) -> Comparison:
    """Ask both the same `count` questions."""
    items, plain = list(held_out(count, seed)), Reference(model, torch.float32)
    found = Comparison(Tally(), Tally(), [])
    for item, ours in zip(items, cluster_answers(client, items), strict=True):
        theirs = plain.answer(item.messages, item.images)
        found.cluster.add(item, ours)
        found.plain.add(item, theirs)
        if ours != theirs:
            found.different.append((item, ours, theirs))
    return found


def main(count: int) -> int:
    """Compare and print; the exit status."""
    torch.set_num_threads(1)
    model = default_model()
    with LocalCluster(ClusterOptions(model)) as cluster, Client(cluster.grpc_address) as client:
        found = compare(client, model, count)
    table = Table("kind", "questions", "cluster", "transformers", title="Exact answers")
    for kind, share in found.cluster.shares().items():
        table.add_row(kind, str(found.cluster.asked[kind]), f"{share:.1%}", f"{found.plain.shares()[kind]:.1%}")
    Console().print(table, f"{len(found.different)} of {count} answers differ")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600))
