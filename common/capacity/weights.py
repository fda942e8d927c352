"""Parameters of each half of a model from its shape, exact to the last one. Imports no torch."""

from __future__ import annotations

from common.capacity.shape import LanguageShape, Linear, ModelShape, VisionShape


def language_parameters(shape: LanguageShape) -> int:
    """Token embeddings, layers, final norm, and the head unless it is tied."""
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return embeddings + shape.layers * _decoder_layer(shape) + shape.hidden


def vision_parameters(shape: VisionShape) -> int:
    """Patch embedding, positions, blocks, outer norms and projector."""
    patches = (shape.patch_values + shape.patch_bias) * shape.hidden
    rows = (shape.positions + shape.class_token) * shape.hidden
    projector = sum(_linear(layer) for layer in shape.projector) + shape.projector_extra
    return patches + rows + shape.layers * _block(shape) + shape.outer_norms + projector


def embedding_bytes_per_token(shape: ModelShape, dtype_bytes: int) -> int:
    """Bytes of what the encoder hands over for one visual token."""
    return shape.vision.maps * shape.language.hidden * dtype_bytes


def _decoder_layer(shape: LanguageShape) -> int:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = (shape.hidden + shape.qkv_bias) * (queries + 2 * keys) + queries * shape.hidden
    norms = shape.norms * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    return attention + 3 * shape.hidden * shape.intermediate + norms


def _block(shape: VisionShape) -> int:
    attention = (shape.hidden + shape.qkv_bias) * 3 * shape.hidden + (shape.hidden + 1) * shape.hidden
    inward = (2 if shape.mlp == "gated" else 1) * (shape.hidden + 1) * shape.intermediate
    outward = (shape.intermediate + 1) * shape.hidden
    norms = 2 * shape.hidden * (2 if shape.norm == "layer" else 1)
    return attention + inward + outward + norms + shape.block_extra


def _linear(layer: Linear) -> int:
    return (layer.inputs + layer.bias) * layer.outputs
