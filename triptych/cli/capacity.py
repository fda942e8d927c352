"""`triptych capacity`: asks `common.capacity` in a process of its own and shows the answer as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from triptych.errors import ConfigError

Attention = Literal["fused", "eager"]
GIB = 1 << 30
WIDTH = 120
COLUMNS = ("topology", "device for", "weights", "peak of a step", "KV blocks", "tokens", "ratio")


def run_capacity(flags: list[str], *, as_json: bool) -> None:
    """Print the plan for `flags`, those of `python -m common.capacity`; ConfigError with its sentence if it fails."""
    answer = ask(flags)
    if as_json:
        print(answer)  # noqa: T201
        return
    figures = json.loads(answer)
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(to_table(figures))
    for line in footer(figures):
        console.print(line, highlight=False)


def to_flags(values: dict[str, Any], measure: bool | None) -> list[str]:
    """Flags of `python -m common.capacity` for option values; None is left out."""
    given = values | {"measure": {None: "auto", True: "always", False: "never"}[measure]}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


def ask(flags: list[str]) -> str:
    """JSON from a child: the command needs no part of a server, and memory is best measured in a fresh process."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        # glibc gives large buffers back at once, so that resident memory follows the tensors.
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    command = [sys.executable, "-P", "-m", "common.capacity", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"capacity planning ended with status {done.returncode}"]
        raise ConfigError(lines[-1])
    return done.stdout.rstrip("\n")


def to_table(figures: dict[str, Any]) -> Table:
    """One row per device of each topology."""
    table = Table(title=title(figures), title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right", no_wrap=True)
    for stage in figures["stages"]:
        table.add_row(*row(stage))
    return table


def title(figures: dict[str, Any]) -> str:
    """Model and device."""
    return (
        f"{figures['model']} in {figures['dtype']}, {_gib(figures['budget_bytes'])} of "
        f"{_gib(figures['device_memory_bytes'])} used per device"
    )


def row(stage: dict[str, Any]) -> list[str]:
    """Cells of one device; a letter says how a figure is known: m measured, c from the config."""
    cells = [stage["topology"], stage["stage"], _cost(stage["weights"]), _cost(stage["peak"])]
    if not stage["fits"]:
        return [*cells, "does not fit", "-", "-"]
    if stage["tokens"] is None:
        return [*cells, "-", "-", "-"]
    ratio = "-" if stage["ratio"] is None else f"{stage['ratio']:.2f}"
    return [*cells, f"{stage['blocks']:,}", f"{stage['tokens']:,}", ratio]


def footer(figures: dict[str, Any]) -> list[str]:
    """What the rows rest on."""
    batch, step = figures["largest_batch"], figures["largest_step"]["prefill+decode"]
    kv, block = figures["kv_bytes_per_token"], figures["block_size"]
    embedding, most = figures["embedding_bytes_per_token"], f"{step['context']:,} tokens"
    pictures = f"{batch['pictures']} picture(s) with {batch['tokens']:,} tokens ({batch['patches']:,} patches)"
    return [
        f"KV of a token: {kv:,} bytes, {block} tokens a block. Embeddings of a visual token: {embedding:,} bytes.",
        f"Largest step: {step['tokens']} prompt tokens and {step['sequences']} sequences of {most}; {pictures}.",
        "m: measured on this machine; c: from the config. Ratio: KV tokens against the monolith's.",
    ]


def _cost(cost: dict[str, Any]) -> str:
    return f"{_gib(cost['bytes'])} {cost['source'][0]}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.2f} MiB"
