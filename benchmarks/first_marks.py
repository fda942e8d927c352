"""The cluster beside plain transformers `generate`, in one run: time to first token, tokens/s, start-up by part.

Both answer the same question about the same picture with the demo model, greedy, float32, a fixed number of tokens.
The cluster's caches are split per request by a salt, so that its cold figures are cold. On one machine the cluster has
the same cores as the baseline and three more processes; what it buys is not single-stream speed.
"""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import Image as Pillow
from rich.console import Console
from rich.table import Table
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2VLForConditionalGeneration
from transformers.generation.streamers import BaseStreamer

from benchmarks.demo_accuracy import png
from triptych import Client, Image
from triptych.answers import Delta
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions, default_model

TOKENS = 48
ROUNDS = 8
CONCURRENCY = 8
QUESTION = "What shape is red?"
PICTURE = Path("models/demo/shapes.png")


@dataclass(frozen=True)
class Timing:
    """Seconds to the first token and to the last."""

    first_s: float
    total_s: float


class Clock(BaseStreamer):
    """Notes when `generate` gives its first new token; the first call is the prompt."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Note the time."""
        self.calls.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to close."""


class Plain:
    """transformers on the same checkpoint."""

    def __init__(self, model: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.processor = AutoImageProcessor.from_pretrained(model, backend="pil")
        self.model = Qwen2VLForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None

    @torch.no_grad()
    def ask(self, picture: Pillow.Image) -> Timing:
        """One answer, preprocessing included."""
        begin, clock = time.perf_counter(), Clock()
        pixels = self.processor(images=[picture], return_tensors="pt")
        count = int(pixels["image_grid_thw"].prod()) // self.processor.merge_size**2
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        chat: list[Any] = [{"role": "user", "content": content}]
        rendered = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        text = str(rendered).replace("<|image_pad|>", "<|image_pad|>" * count)
        inputs = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        marker = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        kinds = (inputs["input_ids"] == marker).int()
        self.model.generate(
            **inputs, **pixels, mm_token_type_ids=kinds, max_new_tokens=TOKENS, do_sample=False, streamer=clock
        )
        return Timing(clock.calls[1] - begin, clock.calls[-1] - begin)


def ask_cluster(client: Client, image: Image, salt: str | None) -> Timing:
    """The same question through the cluster."""
    begin, first = time.perf_counter(), 0.0
    stream = client.generate(
        [image, QUESTION], max_tokens=TOKENS, temperature=0, ignore_eos=True, cache_salt=salt, timeout_s=120
    )
    for event in stream:
        if isinstance(event, Delta) and not first:
            first = time.perf_counter() - begin
    return Timing(first, time.perf_counter() - begin)


def median(timings: list[Timing]) -> Timing:
    """Median of each figure."""
    firsts, totals = [each.first_s for each in timings], [each.total_s for each in timings]
    return Timing(statistics.median(firsts), statistics.median(totals))


def measure(model: Path, picture: Pillow.Image, cluster: LocalCluster) -> dict[str, Timing]:
    """Alternate the ways round by round, so that a slow minute of the machine hits all alike."""
    torch.set_num_threads(1)
    plain, image = Plain(model), png(picture)
    found: dict[str, list[Timing]] = {"transformers generate": [], "cluster, cold": [], "cluster, warm": []}
    with Client(cluster.grpc_address) as client:
        plain.ask(picture)
        ask_cluster(client, image, None)
        for index in range(ROUNDS):
            found["transformers generate"].append(plain.ask(picture))
            found["cluster, cold"].append(ask_cluster(client, image, f"round-{index}"))
            found["cluster, warm"].append(ask_cluster(client, image, None))
    return {name: median(timings) for name, timings in found.items()}


def throughput(cluster: LocalCluster, picture: Pillow.Image) -> float:
    """Output tokens per second with `CONCURRENCY` warm requests at once."""
    image = png(picture)
    with Client(cluster.grpc_address) as client, ThreadPoolExecutor(CONCURRENCY) as pool:
        begin = time.perf_counter()
        list(pool.map(lambda _: ask_cluster(client, image, None), range(2 * CONCURRENCY)))
        return 2 * CONCURRENCY * TOKENS / (time.perf_counter() - begin)


def report(timings: dict[str, Timing], together: float, starts: dict[str, float], memory: dict[str, int]) -> None:
    """Print the tables."""
    console, table = Console(), Table("way", "first token, ms", "ratio", "tokens/s", "ratio", title="One request")
    base = timings["transformers generate"]
    for name, found in timings.items():
        rate, base_rate = TOKENS / found.total_s, TOKENS / base.total_s
        table.add_row(
            name,
            f"{found.first_s * 1000:.0f}",
            f"{found.first_s / base.first_s:.2f}",
            f"{rate:.0f}",
            f"{rate / base_rate:.2f}",
        )
    console.print(table)
    ratio = together / (TOKENS / base.total_s)
    console.print(
        f"{CONCURRENCY} requests at once: {together:.0f} tokens/s, {ratio:.2f} of one `generate` after another"
    )
    parts = Table("part", "ready after, s", "resident memory, MiB", title="Start-up")
    for name, seconds in starts.items():
        parts.add_row(name, f"{seconds:.1f}", f"{memory[name] / 2**20:.0f}")
    console.print(parts)


def resident(pid: int) -> int:
    """Bytes resident in a process and its children."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def main() -> None:
    """Start a cluster, measure both ways, print."""
    model, starts, lock = default_model(), {}, threading.Lock()

    def ready(part: object, seconds: float) -> None:
        with lock:
            starts[part.name] = seconds  # type: ignore[attr-defined]

    with LocalCluster(ClusterOptions(model), on_ready=ready) as cluster, Pillow.open(PICTURE) as opened:
        picture = opened.convert("RGB")
        memory = {name: resident(child.pid) for name, child in cluster.children.items()}
        timings = measure(model, picture, cluster)
        report(timings, throughput(cluster, picture), starts, memory)


if __name__ == "__main__":
    main()
