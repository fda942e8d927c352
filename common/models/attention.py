"""The seam between transformers' language models and our engine: who computes attention, and over which keys.

A packed forward runs several sequences as one of T tokens. Only attention must know where one ends and which keys
came before; that is handed through the model to the function registered here.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "triptych_paged"
"""The `attn_implementation` of our language models."""


class Attention(Protocol):
    """Attention of one packed forward, asked once per layer in order."""

    def attend(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None = None
    ) -> Tensor:
        """Attend T packed tokens, each to its own sequence's past and itself, the last `window` tokens of it if set.

        `query` is (heads, T, head_dim), `key` and `value` are (kv_heads, T, head_dim), all after rotary embedding.
        Returns (T, heads, head_dim) in the dtype of `query`.
        """


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """What transformers calls: (1, heads, T, head_dim) in, (1, T, heads, head_dim) out."""
    attention: Attention = kwargs["triptych_attention"]
    layer_idx: int = module.layer_idx  # type: ignore[assignment]
    attended = attention.attend(layer_idx, query[0], key[0], value[0], kwargs["scaling"], kwargs.get("sliding_window"))
    return attended[None], None


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to transformers; may be repeated.

    It is left out of `AttentionMaskInterface` on purpose: for a name absent there the models build no mask, and so
    do not compare positions to find packed sequences either, which would wait for the device in every step.
    """
    AttentionInterface.register(ATTENTION_NAME, _attend)
