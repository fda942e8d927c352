"""Attention of one packed batch over the paged KV cache."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from common.engine.batch import PackedBatch
from common.engine.kv_cache import KvCache
from common.engine.plan import ChunkPlan, DecodePlan, plan_chunk, plan_decode


class PagedAttention:
    """The `Attention` of `common.models`, good for one step: writes the new KV, then attends.

    Chunks (more than one token) run one by one, causally over their own context, and both ways inside images that must
    stay whole. Single tokens, which are all that decode does, run together in few padded calls. Everything that depends
    on block tables is worked out once a step, not once a layer; what depends on a layer's window, once for each window.
    `layer_written(layer)` is called as soon as a layer's KV of this step is in the cache, while the rest of the layer
    is still to be computed: that is where a transfer of the layer may begin.
    """

    def __init__(self, cache: KvCache, batch: PackedBatch, layer_written: Callable[[int], None] | None = None) -> None:
        self._cache = cache
        self._slots = batch.slots
        self._layer_written = layer_written
        block_size = cache.layout.block_size
        singles = [segment for segment in batch.segments if segment.length == 1]
        self._chunks = [
            plan_chunk(segment, block_size, cache.device) for segment in batch.segments if segment.length > 1
        ]
        self._decodes = plan_decode(singles, block_size, cache.device)
        self._masks: dict[tuple[ChunkPlan, int | None], Tensor | None] = {}
        self._within: dict[int | None, list[DecodePlan]] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None = None
    ) -> Tensor:
        """Query (heads, T, D) after rotary, key and value (kv_heads, T, D); gives (T, heads, D) in query's dtype.

        Query head h reads key head h * kv_heads // heads (grouped-query attention, Ainslie et al. 2023).
        """
        self._cache.write(layer, self._slots, key.transpose(0, 1), value.transpose(0, 1))
        if self._layer_written is not None:
            self._layer_written(layer)
        # (kv_heads, group, T, D): a group shares its keys by a zero stride, so they are never repeated in memory.
        grouped = query.reshape(key.shape[0], -1, *query.shape[1:])
        output = query.new_empty((query.shape[1], query.shape[0], value.shape[-1]))
        for chunk in self._chunks:
            self._attend_chunk(layer, chunk, grouped, output, scaling, window)
        for decode in self._decodes_within(window):
            self._attend_decode(layer, decode, grouped, output, scaling)
        return output

    def _attend_chunk(
        self, layer: int, chunk: ChunkPlan, grouped: Tensor, output: Tensor, scaling: float, window: int | None
    ) -> None:
        key, value = self._cache.gather(layer, chunk.context[chunk.reach(window) :])
        query = grouped[:, :, chunk.first : chunk.last]
        shape = (*query.shape[:2], key.shape[0], key.shape[-1])
        attended = scaled_dot_product_attention(
            query,
            key.transpose(0, 1).unsqueeze(1).expand(shape),
            value.transpose(0, 1).unsqueeze(1).expand(shape),
            attn_mask=self._mask(chunk, window, key.shape[0]),
            scale=scaling,
        )
        output[chunk.first : chunk.last] = attended.flatten(0, 1).transpose(0, 1)

    def _mask(self, chunk: ChunkPlan, window: int | None, keys: int) -> Tensor:
        if (chunk, window) not in self._masks:
            self._masks[chunk, window] = chunk.mask(window)
        mask = self._masks[chunk, window]
        return causal_lower_right(chunk.length, keys) if mask is None else mask

    def _decodes_within(self, window: int | None) -> list[DecodePlan]:
        if window not in self._within:
            self._within[window] = [decode.within(window) for decode in self._decodes]
        return self._within[window]

    def _attend_decode(self, layer: int, decode: DecodePlan, grouped: Tensor, output: Tensor, scaling: float) -> None:
        key, value = self._cache.gather(layer, decode.context)
        # One query token per sequence: its group of heads takes the place of the query length, so keys are shared.
        query = grouped.index_select(2, decode.rows).permute(2, 0, 1, 3)
        attended = scaled_dot_product_attention(
            query, key.transpose(1, 2), value.transpose(1, 2), attn_mask=decode.mask, scale=scaling
        )
        output.index_copy_(0, decode.rows, attended.flatten(1, 2))
