"""The plainest possible attention behind the seam: no cache, each packed sequence attends to itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


class DenseAttention:
    """Attention of whole sequences of `lengths` tokens, packed in this order; counts the layers it served.

    It is causal, but for the images of `whole`, as (begin, end) for each sequence.
    """

    def __init__(self, lengths: Sequence[int], whole: Sequence[Sequence[tuple[int, int]]] = ()) -> None:
        self._lengths = list(lengths)
        images = whole or [()] * len(lengths)
        self._masks = [_mask(length, spans) for length, spans in zip(lengths, images, strict=True)]
        self.layers: list[int] = []

    def attend(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None = None
    ) -> Tensor:
        """See `Attention.attend`."""
        self.layers.append(layer_idx)
        queries, keys, values = (torch.split(tensor, self._lengths, dim=1) for tensor in (query, key, value))
        masks = [mask if window is None else mask.triu(1 - window) for mask in self._masks]
        attended = [
            functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)
            for q, k, v, mask in zip(queries, keys, values, masks, strict=True)
        ]
        return torch.cat(attended, dim=1).transpose(0, 1)


def _mask(length: int, whole: Sequence[tuple[int, int]]) -> Tensor:
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    for begin, end in whole:
        mask[begin:end, begin:end] = True
    return mask
