"""Loads what a language-side worker computes with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.engine.blocks import BlockPool
from common.engine.kv_cache import KvCache
from common.engine.memory import PoolPlan, kv_layout, plan_pool
from common.engine.prefix_cache import PrefixCache
from common.engine.probe import StepLimits
from common.engine.runner import ModelRunner
from common.families import load_family
from common.families.base import Family
from common.families.checkpoint import config_fingerprint
from common.grammar import GrammarCompiler
from common.models.language import LanguageModel
from common.worker.blocks import SequenceBlocks
from common.worker.heap import keep_freed_memory
from common.worker.settings import WorkerSettings

CPU_BUDGET_BYTES = 1 << 30
GPU_SHARE = 0.9
LARGEST_SIDE = 8000
"""Pixels of a side of a picture that every image processor scales down to the most it lets through."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Model, KV pool and family of one worker. `context_length` bounds prompt plus answer in tokens."""

    settings: WorkerSettings
    family: Family
    model: LanguageModel
    runner: ModelRunner
    blocks: SequenceBlocks
    plan: PoolPlan
    context_length: int
    grammars: GrammarCompiler
    config_fingerprint: str

    @property
    def cache(self) -> KvCache:
        """The KV tensors."""
        return self.runner.cache


def load_parts(settings: WorkerSettings, step_tokens: int, step_sequences: int) -> Parts:
    """Load the language weights, measure the largest step, and size the pool. Raises ConfigError.

    The largest step computes `step_tokens` tokens of one prompt and one token of each of `step_sequences` others.
    """
    torch.set_num_threads(settings.threads)
    device = torch.device(settings.device)
    family = load_family(settings.model)
    model = LanguageModel.load(settings.model, dtype=getattr(torch, settings.dtype), device=device)
    context = min(model.max_positions, settings.context_length or model.max_positions)
    layout = kv_layout(model, settings.block_size)
    limits = StepLimits(_largest_chunk(family, step_tokens), step_sequences, context, family.position_rows)
    plan = plan_pool(model, layout, limits, budget_bytes=_budget(settings, device), blocks=settings.blocks)
    cache = KvCache(layout, plan.blocks, device)
    blocks = SequenceBlocks(PrefixCache(BlockPool(plan.blocks)), settings.block_size)
    grammars = GrammarCompiler(settings.model, model.vocab_size, model.eos_token_ids)
    config = config_fingerprint(settings.model)
    # After loading, whose intermediate copies are to be given back.
    keep_freed_memory()
    return Parts(settings, family, model, ModelRunner(model, cache), blocks, plan, context, grammars, config)


def _largest_chunk(family: Family, step_tokens: int) -> int:
    """An image that must not be cut is computed in one step, however small steps are. Decode computes no images."""
    if step_tokens == 1 or family.image_attention_is_causal:
        return step_tokens
    return max(step_tokens, family.layout(LARGEST_SIDE, LARGEST_SIDE).tokens)


def _budget(settings: WorkerSettings, device: torch.device) -> int:
    if settings.memory is not None:
        return int(settings.memory)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1] * GPU_SHARE)
    return CPU_BUDGET_BYTES
