"""Sizing the KV pool: the arithmetic, and a measured largest step of a real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.engine.layout import KvLayout
from common.engine.memory import PoolPlan, Usage, fit_pool, kv_layout, measure, plan_pool
from common.engine.probe import LargestStep, StepLimits
from common.models.language import LanguageModel
from tests.checkpoints import build_checkpoint
from triptych.errors import ConfigError

LAYOUT = KvLayout("float32", 2, 2, 16, 16)
LIMITS = StepLimits(tokens=256, sequences=16, context=512, position_rows=3)
MIB = 2**20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    directory = build_checkpoint("qwen2_vl", tmp_path_factory.mktemp("memory"))
    return LanguageModel.load(directory, dtype=torch.float32, device=torch.device("cpu"))


def test_what_a_budget_leaves_becomes_blocks() -> None:
    size = LAYOUT.bytes_per_block
    plan = fit_pool(LAYOUT, 10 * size + 300, Usage(resident_bytes=2 * size, peak_bytes=size))
    assert plan == PoolPlan(blocks=7, tokens=7 * 16, resident_bytes=2 * size, peak_bytes=size)


def test_a_budget_without_room_stops_with_the_figures() -> None:
    with pytest.raises(ConfigError, match=r"1000 bytes leaves no room .* 900 bytes are resident, a step takes 90 more"):
        fit_pool(LAYOUT, 1000, Usage(900, 90))


def test_a_set_number_of_blocks_wins_and_measures_nothing(model: LanguageModel) -> None:
    plan = plan_pool(model, kv_layout(model, 16), LIMITS, budget_bytes=1, blocks=9)
    assert plan == PoolPlan(9, 144, 0, 0)
    assert str(plan) == "KV pool: 9 blocks, 144 tokens (set by hand)"


def test_neither_blocks_nor_budget_is_a_bad_setting(model: LanguageModel) -> None:
    with pytest.raises(ConfigError, match="set either"):
        plan_pool(model, kv_layout(model, 16), LIMITS, budget_bytes=None, blocks=None)


def test_a_real_model_is_measured(model: LanguageModel) -> None:
    budget = 8 * 2**30
    plan = plan_pool(model, kv_layout(model, 16), LIMITS, budget_bytes=budget, blocks=None)
    assert plan.resident_bytes > 50 * MIB
    used = plan.resident_bytes + plan.peak_bytes + plan.blocks * kv_layout(model, 16).bytes_per_block
    assert budget - kv_layout(model, 16).bytes_per_block < used <= budget
    assert f"{plan.blocks} blocks, {plan.tokens} tokens (" in str(plan)


def test_the_peak_of_a_step_is_seen() -> None:
    usage = measure(lambda: hold(200 * MIB), torch.device("cpu"))
    assert 150 * MIB < usage.peak_bytes < 300 * MIB


def test_an_error_in_the_step_ends_the_watch() -> None:
    calls = iter([None, ConfigError("no")])

    def step() -> None:
        error = next(calls)
        if error is not None:
            raise error

    with pytest.raises(ConfigError):
        measure(step, torch.device("cpu"))


@pytest.mark.parametrize(("tokens", "sequences", "context"), [(1, 1, 1), (64, 4, 33), (600, 2, 100)])
def test_the_largest_step_runs_at_any_size(model: LanguageModel, tokens: int, sequences: int, context: int) -> None:
    LargestStep(model, kv_layout(model, 16), StepLimits(tokens, sequences, context, 3))()


def hold(size: int) -> None:
    """Touch `size` bytes for a while and give them back."""
    block = np.zeros(size, dtype=np.uint8)
    for start in range(0, size, MIB):
        block[start : start + MIB : 4096] = 1
    for _ in range(20):
        block[: 16 * MIB].sum()
