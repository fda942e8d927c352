"""A dummy run of the largest step a worker may meet, to measure what memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from common.engine.kv_cache import KvCache
from common.engine.layout import KvLayout, blocks_for
from common.engine.runner import ModelRunner
from common.engine.sampler import sample
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import Positions
from triptych.errors import InternalError

if TYPE_CHECKING:
    from common.models.language import LanguageModel


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: `tokens` of one prefill chunk and `sequences` decode steps, at `context` tokens each.

    `position_rows` is the family's number of position rows.
    """

    tokens: int
    sequences: int
    context: int
    position_rows: int


class LargestStep:
    """Callable that runs the step once. All sequences share one run of blocks, in a cache that is one layer high."""

    def __init__(self, model: LanguageModel, layout: KvLayout, limits: StepLimits) -> None:
        self._limits = limits
        one_layer = replace(layout, layers=1)
        self._blocks = blocks_for(limits.context, layout.block_size)
        self._runner = ModelRunner(model, _OneLayerCache(one_layer, self._blocks, model.device))

    def __call__(self) -> None:
        """Run the step, sampling included; nothing is kept."""
        chunk = min(self._limits.tokens, self._limits.context)
        work = [(self._sequence(chunk), chunk)]
        work += [(self._sequence(1), 1) for _ in range(self._limits.sequences)]
        result = self._runner.execute(work, _no_images)
        sample(result.logits, result.sequences)

    def _sequence(self, uncomputed: int) -> Sequence:
        length = self._limits.context
        ids = np.broadcast_to(np.arange(length, dtype=np.int64), (self._limits.position_rows, length))
        # top_p sorts the whole vocabulary, the most that sampling ever needs.
        params = SamplingParams(top_p=0.9, seed=0)
        sequence = Sequence("probe", [0] * length, Positions(ids, length), params)
        sequence.block_table = list(range(self._blocks))
        sequence.num_computed = length - uncomputed
        return sequence


class _OneLayerCache(KvCache):
    """Every layer writes to and reads from the same memory: the cost of a step without the cost of a cache."""

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        super().write(0, slots, key, value)

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        return super().gather(0, slots)


def _no_images(sequence: Sequence, index: int) -> Mapping[str, torch.Tensor]:
    raise InternalError(f"{sequence.request_id} has no image {index}")
