"""The tables of docs/capacity.md, from the shapes beside: `python -m benchmarks.capacity_tables`. Needs no weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from common.capacity.costs import Workload
from common.capacity.report import Plan, Question, make_plan
from common.capacity.topology import Stage
from triptych.errors import ConfigError

SHAPES = Path(__file__).parent / "capacity_shapes"
ORDER = (
    "minicpm-v-2.6-like",
    "internvl2-8b-like",
    "internvl2-26b-like",
    "qwen2-vl-2b-like",
    "qwen2-vl-7b-like",
    "qwen2.5-vl-7b-like",
    "qwen3-vl-8b-like",
    "llava-1.5-7b-like",
)
PICTURES = (1, 5, 10, 20, 40, 80)
GOAL = 2.2
MOST_PICTURES = 4096
GIB = 1 << 30


def plan(name: str, images: int | None = None, memory_gib: int = 80, context: int | None = None) -> Plan:
    """The plan of one shape; `images` encoded at once, None for what the encoder's limit lets in."""
    work = Workload(images=images, context=context)
    return make_plan(Question(shape=SHAPES / f"{name}.json", device_memory=memory_gib * GIB, work=work))


def stage_of(found: Plan, topology: str) -> Stage:
    """The last stage of a topology, which is the one that decodes."""
    return [stage for stage in found.stages if stage.topology == topology][-1]


def gain(name: str, images: int | None = None, memory_gib: int = 80) -> float | None:
    """KV tokens of E/PD's language device against the monolith's; infinite when only the monolith has no room.

    None when the language model alone does not fit.
    """
    try:
        found = plan(name, images, memory_gib)
    except ConfigError:
        return None
    ratio = stage_of(found, "E/PD").ratio
    return float("inf") if ratio is None else ratio


def pictures_for(goal: float, name: str) -> int:
    """The fewest pictures of the largest size that, encoded at once, bring the gain to `goal` on 80 GiB."""
    low, high = 0, MOST_PICTURES
    while high - low > 1:
        middle = (low + high) // 2
        reached = (gain(name, middle) or 0.0) >= goal
        low, high = (low, middle) if reached else (middle, high)
    return high


def stages_table() -> Iterator[str]:
    """Every device of every topology at the defaults."""
    yield "| shape | topology | device for | weights GiB | peak GiB | KV bytes/token | blocks | tokens | ratio |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for name in ORDER:
        found = plan(name)
        for stage in found.stages:
            yield _row(name, found, stage)


def _row(name: str, found: Plan, stage: Stage) -> str:
    kv = "-" if stage.tokens is None else f"{found.figures()['kv_bytes_per_token']:,}"
    numbers = ["-" if value is None else f"{value:,}" for value in (stage.blocks, stage.tokens)]
    ratio = "-" if stage.ratio is None else f"{stage.ratio:.2f}"
    sizes = [f"{cost.bytes / GIB:.2f}" for cost in (stage.weights, stage.peak)]
    return f"| {' | '.join([name, stage.topology, stage.stage, *sizes, kv, *numbers, ratio])} |"


def pictures_table() -> Iterator[str]:
    """Gain over pictures encoded at once, and where it reaches the goal."""
    heads = [f"{count}" for count in PICTURES]
    yield f"| shape | tokens a picture | encoder's limit | {' | '.join(heads)} | {GOAL}x from |"
    yield f"|---|--:|--:|{'--:|' * len(heads)}--:|"
    for name in ORDER:
        cells = [_times(gain(name, images)) for images in (None, *PICTURES)]
        tokens = plan(name).shape.vision.image_tokens
        yield f"| {name} | {tokens:,} | {' | '.join(cells)} | {pictures_for(GOAL, name)} pictures |"


def devices_table() -> Iterator[str]:
    """Gain over the size of the device, at the encoder's limit."""
    sizes = (16, 24, 40, 48, 80)
    yield f"| shape | {' | '.join(f'{size} GiB' for size in sizes)} |"
    yield f"|---|{'--:|' * len(sizes)}"
    for name in ORDER:
        yield f"| {name} | {' | '.join(_times(gain(name, None, size)) for size in sizes)} |"


def _times(value: float | None) -> str:
    if value is None:
        return "-"
    return "only split" if value == float("inf") else f"{value:.2f}"


if __name__ == "__main__":
    for table in (stages_table, pictures_table, devices_table):
        print("\n".join(table()), end="\n\n")
