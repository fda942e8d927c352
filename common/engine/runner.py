"""Runs one step of the language model over a batch of sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.engine.attention import PagedAttention
from common.engine.batch import PackedBatch, pack
from common.engine.images import ImageTensors, splice
from common.engine.kv_cache import KvCache
from common.engine.sequence import Sequence

if TYPE_CHECKING:
    from common.models.language import LanguageModel


@dataclass(frozen=True, slots=True)
class StepResult:
    """`logits` (n, V) float32, one row for each of `sequences`: those with nothing left to compute, in work order."""

    sequences: tuple[Sequence, ...]
    logits: Tensor


class ModelRunner:
    """A language model with its KV cache. Decides nothing: blocks are given to sequences before a step is run.

    Blocking and not thread-safe; an engine runs it in one thread of its own.
    """

    def __init__(self, model: LanguageModel, cache: KvCache) -> None:
        self.model = model
        self.cache = cache

    @torch.inference_mode()
    def execute(
        self,
        work: Iterable[tuple[Sequence, int]],
        images: ImageTensors,
        layer_written: Callable[[int], None] | None = None,
    ) -> StepResult:
        """Compute the next `count` tokens of each (sequence, count); chunks and decode steps may be mixed freely.

        Advances `num_computed` when all went well, and leaves every sequence as it was otherwise. `layer_written` is
        called with each layer's number once its KV of this step is in the cache.
        """
        entries = [(sequence, sequence.num_computed, sequence.num_computed + count) for sequence, count in work]
        batch = pack(entries, self.cache.layout.block_size, self.cache.device)
        hidden = self._forward(batch, images, layer_written)
        logits = self.model.logits(hidden.index_select(0, batch.logits_rows))
        for sequence, _, end in entries:
            sequence.num_computed = end
        return StepResult(batch.finishing, logits)

    def _forward(self, batch: PackedBatch, images: ImageTensors, layer_written: Callable[[int], None] | None) -> Tensor:
        embeds = self.model.embed(batch.token_ids)
        visual = splice(embeds, batch, images)
        return self.model.forward(embeds, batch.positions, visual, PagedAttention(self.cache, batch, layer_written))
