"""The plainest possible attention behind the seam: no cache, each packed sequence attends causally to itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


class DenseAttention:
    """Attention of whole sequences of `lengths` tokens, packed in this order; counts the layers it served."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self.layers: list[int] = []

    def attend(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `Attention.attend`."""
        self.layers.append(layer_idx)
        queries, keys, values = (torch.split(tensor, self._lengths, dim=1) for tensor in (query, key, value))
        attended = [
            functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
            for q, k, v in zip(queries, keys, values, strict=True)
        ]
        return torch.cat(attended, dim=1).transpose(0, 1)
