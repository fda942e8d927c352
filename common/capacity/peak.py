"""The most that a step holds on top of the weights, from a model's shape alone.

Each function lists the moments that can be the highest and what is alive in each, tensor by tensor, as PyTorch runs
the modules one operation after another; the peak is the largest moment. What an allocator adds by rounding and what
libraries take as workspace is not in here; tests hold the sums against measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.capacity.shape import LanguageShape, Linear, VisionShape
from common.engine.plan import MAX_GATHERED

Attention = Literal["fused", "eager"]
"""Whether attention scores stay inside a kernel or are written to memory."""
Moments = dict[str, int]

SAMPLING_BYTES = 44
"""Bytes a logit costs while top_p filters it: five float32 copies (logits, log-probabilities, tempered, selected,
sorted), the int64 order, and softmax and its running sum in float64."""


@dataclass(frozen=True)
class Step:
    """A step of the language model: `tokens` of one prompt and one token of `sequences` others, `context` each."""

    tokens: int
    sequences: int
    context: int


def language_moments(shape: LanguageShape, step: Step, dtype_bytes: int, attention: Attention) -> Moments:
    """Bytes alive at each candidate moment of a step."""
    chunk = min(step.tokens, step.context)
    rows = chunk + step.sequences
    plans = 9 * step.context * (step.sequences + 1)  # int64 slots and one byte of mask for every context token
    held = 3 * rows * shape.hidden * dtype_bytes + plans  # embeddings, residual stream, normalised input
    return {
        "attention": held + _paged_attention(shape, step, chunk, dtype_bytes, attention),
        "mlp": held + 3 * rows * shape.intermediate * dtype_bytes,  # activated gate, up, their product
        "sampling": SAMPLING_BYTES * (step.sequences + 1) * shape.vocab,
    }


def _paged_attention(shape: LanguageShape, step: Step, chunk: int, dtype_bytes: int, attention: Attention) -> int:
    queries, keys = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    rows = chunk + step.sequences
    together = max(1, min(step.sequences, MAX_GATHERED // step.context)) if step.sequences else 0
    gathered = max(step.context, together * step.context) * keys * dtype_bytes
    projected = rows * (3 * queries + keys) * dtype_bytes  # queries, output, one call's result; keys and values
    return projected + gathered + _scores(shape.heads * max(chunk, together) * step.context, dtype_bytes, attention)


@dataclass(frozen=True)
class Batch:
    """Pictures encoded in one step: `patches` and `tokens` of all, `pictures` of them equal in size."""

    pictures: int
    patches: int
    tokens: int


def batch_of(shape: VisionShape, pictures: int | None, encoder_tokens: int) -> Batch:
    """`pictures` of the largest size, or as many as an encoder's limit lets in; one goes in always."""
    count = pictures if pictures is not None else max(1, encoder_tokens // shape.image_tokens)
    return Batch(count, count * shape.image_patches, count * shape.image_tokens)


def vision_moments(shape: VisionShape, width: int, batch: Batch, dtype_bytes: int, attention: Attention) -> Moments:
    """Bytes alive at each candidate moment of encoding `batch` into rows of `width`, the language model's."""
    rows = batch.patches * shape.hidden  # values of one hidden state
    stream = rows * dtype_bytes
    pixels = 2 * batch.patches * shape.patch_values * dtype_bytes  # each picture's, and packed
    kept = (shape.layers + 1) * stream if shape.keeps_layers else 0
    features = batch.tokens * width * shape.maps * dtype_bytes
    held = pixels + kept + 2 * stream  # the residual stream and the normalised input
    live = 3 if shape.mlp == "gated" or shape.activation == "quick_gelu" else 2
    projected = max((_projected(layer, batch) for layer in shape.projector), default=0)
    return {
        "attention": held + _tower_attention(shape, batch, dtype_bytes, attention),
        "mlp": held + live * batch.patches * shape.intermediate * dtype_bytes,
        "projector": held + 2 * projected * dtype_bytes + features,
        "features": pixels + kept + stream + 2 * features,  # packed, and one copy per picture
    }


def _tower_attention(shape: VisionShape, batch: Batch, dtype_bytes: int, attention: Attention) -> int:
    rows = batch.patches * shape.hidden
    span = shape.attention_patches or batch.patches // batch.pictures
    # Tiles of one size run as a batch; pictures of any size one after another.
    scores = shape.heads * span * (batch.patches if shape.attention_patches else span)
    attend = rows * dtype_bytes * (7 if shape.rotary else 5)  # q, k, v, output, joined output; q and k again if rotated
    # Rotation in float32: both inputs (the same tensors if they are float32), one result, three terms.
    rotate = rows * (3 * dtype_bytes + (16 if dtype_bytes == 4 else 24)) if shape.rotary else 0
    return max(rotate, attend + _scores(scores, dtype_bytes, attention))


def _projected(layer: Linear, batch: Batch) -> int:
    return layer.outputs * (batch.patches if layer.rows == "patches" else batch.tokens)


def _scores(count: int, dtype_bytes: int, attention: Attention) -> int:
    """Scores, their float32 softmax, and that in the model's dtype."""
    return count * (2 * dtype_bytes + 4) if attention == "eager" else 0
