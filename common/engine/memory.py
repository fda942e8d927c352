"""How many KV blocks fit: the memory budget minus what is resident and minus the measured peak of the largest step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import torch

from common.engine.layout import KvLayout
from common.engine.probe import LargestStep, StepLimits
from triptych.errors import ConfigError

if TYPE_CHECKING:
    from common.models.language import LanguageModel

_SAMPLE_INTERVAL_S = 0.001


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Size of the KV pool and what it follows from; a worker prints it at start.

    `resident_bytes` is held after loading, `peak_bytes` comes on top while the largest step runs. Both are 0 when the
    number of blocks was set by hand and nothing was measured.
    """

    blocks: int
    tokens: int
    resident_bytes: int
    peak_bytes: int

    def __str__(self) -> str:
        size = f"KV pool: {self.blocks} blocks, {self.tokens} tokens"
        if not self.resident_bytes:
            return f"{size} (set by hand)"
        return f"{size} ({self.resident_bytes} bytes resident, {self.peak_bytes} bytes more at the peak of a step)"


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes held before a step, and the most that it held on top of them."""

    resident_bytes: int
    peak_bytes: int


def kv_layout(model: LanguageModel, block_size: int) -> KvLayout:
    """The layout of a model's KV blocks."""
    dtype = str(model.dtype).removeprefix("torch.")
    return KvLayout(dtype, model.num_layers, model.num_kv_heads, model.head_dim, block_size)


def plan_pool(
    model: LanguageModel, layout: KvLayout, limits: StepLimits, *, budget_bytes: int | None, blocks: int | None
) -> PoolPlan:
    """Size the pool: `blocks` if it is set, else as much of `budget_bytes` as the model and a step leave over.

    The budget is what this process may hold: on CUDA as torch counts it, without the driver's own few hundred MB; on
    the CPU as resident memory. Raises ConfigError if neither is set or the budget leaves no room.
    """
    if blocks is not None:
        return PoolPlan(blocks, blocks * layout.block_size, 0, 0)
    if budget_bytes is None:
        raise ConfigError("set either the number of KV blocks or a memory budget", param="memory_bytes")
    usage = measure(LargestStep(model, layout, limits), model.device)
    return fit_pool(layout, budget_bytes, usage)


def fit_pool(layout: KvLayout, budget_bytes: int, usage: Usage) -> PoolPlan:
    """The arithmetic of `plan_pool`."""
    left = budget_bytes - usage.resident_bytes - usage.peak_bytes
    blocks = left // layout.bytes_per_block
    if blocks < 1:
        raise ConfigError(
            f"a budget of {budget_bytes} bytes leaves no room for KV: {usage.resident_bytes} bytes are resident, "
            f"a step takes {usage.peak_bytes} more and one block {layout.bytes_per_block}",
            param="memory_bytes",
        )
    return PoolPlan(blocks, blocks * layout.block_size, usage.resident_bytes, usage.peak_bytes)


def measure(step: Callable[[], None], device: torch.device) -> Usage:
    """Run `step` twice and measure the second: the first maps weights, starts libraries and fills allocators."""
    step()
    return _measure_cuda(step, device) if device.type == "cuda" else _measure_host(step)


def _measure_cuda(step: Callable[[], None], device: torch.device) -> Usage:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    resident = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return Usage(resident, torch.cuda.max_memory_allocated(device) - resident)


def _measure_host(step: Callable[[], None]) -> Usage:
    process = psutil.Process()
    resident = highest = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(_SAMPLE_INTERVAL_S):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch, name="memory-watch", daemon=True)
    watcher.start()
    try:
        step()
    finally:
        done.set()
        watcher.join()
    return Usage(resident, highest - resident)
