"""The same costs, measured on a checkpoint whose weights are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from PIL import Image

from common.capacity.checkpoint import largest_layout
from common.capacity.costs import Cost, Costs, Workload, batch_for
from common.capacity.shape import ModelShape
from common.engine.memory import kv_layout, measure
from common.engine.probe import LargestStep, StepLimits
from common.families import load_family
from common.families.checkpoint import read_config
from common.models.language import LanguageModel
from common.models.tower import Prepared, Tower
from common.models.weights import Stage, stored_tensors
from triptych.errors import CheckpointError

MAX_CPU_BYTES = 2 << 30
"""Weights that are measured on a CPU without being asked to; the largest step of more takes minutes there."""


def is_measurable(model_dir: Path, device: torch.device, weight_bytes: int) -> bool:
    """Whether the weights are there and the device has room for twice their size."""
    try:
        found = all(stored_tensors(model_dir, stage) for stage in Stage)
    except CheckpointError:
        return False
    if device.type == "cuda":
        return found and 2 * weight_bytes <= torch.cuda.mem_get_info(device)[0]
    return found and weight_bytes <= min(MAX_CPU_BYTES, psutil.virtual_memory().available // 2)


def measure_costs(model_dir: Path, shape: ModelShape, work: Workload, device: torch.device) -> Costs:
    """Load one half after the other and run the largest step of each role, as the workers do at start."""
    tower, encode = _measure_tower(model_dir, shape, work, device)
    language, peaks = _measure_language(model_dir, work, device)
    return Costs(tower, language, {"encode": encode, **peaks})


def _measure_tower(model_dir: Path, shape: ModelShape, work: Workload, device: torch.device) -> tuple[Cost, Cost]:
    tower = Tower.load(model_dir, getattr(torch, work.dtype), device)
    batch = largest_pictures(tower, read_config(model_dir).vision_config.patch_size, shape, work)

    def encode() -> None:
        tower.encode(batch)

    return _measured(tower.resident_bytes), _peak(encode, device)


def _measure_language(model_dir: Path, work: Workload, device: torch.device) -> tuple[Cost, dict[str, Cost]]:
    model = LanguageModel.load(model_dir, dtype=getattr(torch, work.dtype), device=device)
    layout, rows = kv_layout(model, work.block_size), load_family(model_dir).position_rows
    peaks = {}
    for role, step in work.steps(model.max_positions).items():
        limits = StepLimits(step.tokens, step.sequences, step.context, rows)
        peaks[role] = _peak(LargestStep(model, layout, limits), device)
    return _measured(model.resident_bytes), peaks


def largest_pictures(tower: Tower, patch_size: int, shape: ModelShape, work: Workload) -> list[Prepared]:
    """One grey picture of the largest size, as often as the encoder takes it at once."""
    rows, columns = largest_layout(tower.family).grid[-2:]
    picture = tower.preprocess(Image.new("RGB", (columns * patch_size, rows * patch_size), "grey"))
    if picture.tokens != shape.vision.image_tokens:
        raise CheckpointError(
            f"the largest picture of this checkpoint has {picture.tokens} tokens; no other size can be measured"
        )
    return [picture] * batch_for(shape, work).pictures


def _peak(step: Callable[[], None], device: torch.device) -> Cost:
    return _measured(measure(step, device).peak_bytes)


def _measured(size: int) -> Cost:
    return Cost(size, "measured")
