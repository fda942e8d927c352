"""The vision tower run on many pictures of one size at once, and what it is supervised with.

transformers calls attention once per picture, which is slow in training. Here the pictures of one size share a call;
the mathematics is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel as VisionTower

from models.training.scenes import COLOURS, DIGITS, SHAPES, WORDS, Scene, Thing

NAMES = (*SHAPES, *DIGITS, *WORDS)
CLASSES = {"colour": len(COLOURS) + 1, "name": len(NAMES) + 1, "column": 2, "row": 2}
IGNORED = -100
EMPTY_WEIGHT = 0.2  # most cells are empty


def _attend_by_picture(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    patches: int,
    **_: Any,
) -> tuple[Tensor, None]:
    """Full attention within runs of `patches`; q, k, v are (1, heads, pictures * patches, head_dim)."""
    query, key, value = (part[0].unflatten(1, (-1, patches)).transpose(0, 1) for part in (query, key, value))
    out = functional.scaled_dot_product_attention(query, key, value)
    return out.transpose(1, 2).flatten(0, 1)[None], None


AttentionInterface.register("by_picture", _attend_by_picture)


def encode(visual: VisionTower, pixels: Tensor, rows: int, cols: int, *, train_blocks: bool = True) -> Tensor:
    """Embeddings (pictures, rows * cols, hidden) of pictures (pictures, 4 * rows * cols, patch) of one size.

    Without `train_blocks` only the merger gets a gradient, which is a third of the work.
    """
    with torch.set_grad_enabled(train_blocks and torch.is_grad_enabled()):
        states = _patch_states(visual, pixels, rows, cols)
    merged: Tensor = visual.merger(states)
    return merged.unflatten(0, (len(pixels), rows * cols))


def _patch_states(visual: VisionTower, pixels: Tensor, rows: int, cols: int) -> Tensor:
    """The last block's states (pictures * patches, width)."""
    pictures, patches, _ = pixels.shape
    states: Tensor = visual.patch_embed(pixels.flatten(0, 1))
    rotary = visual.rotary_pos_emb(states, _patch_positions(rows, cols).repeat(pictures, 1))
    lengths = torch.tensor([0, pictures * patches], dtype=torch.int32)
    usual, visual.config._attn_implementation = visual.config._attn_implementation, "by_picture"
    for block in visual.blocks:
        states = block(states, cu_seqlens=lengths, position_embeddings=rotary, patches=patches)
    visual.config._attn_implementation = usual
    return states


def _patch_positions(rows: int, cols: int) -> Tensor:
    """(patches, 2) row and column of every patch, the four patches of a token in succession."""
    row, col = torch.meshgrid(torch.arange(2 * rows), torch.arange(2 * cols), indexing="ij")
    both = torch.stack((row, col), dim=-1)
    return both.view(rows, 2, cols, 2, 2).transpose(1, 2).reshape(-1, 2)


def cell_labels(scene: Scene) -> Tensor:
    """(rows * cols, 4): colour, name, column half and row half of every cell; 0 means nothing there."""
    labels = torch.zeros(scene.rows, scene.cols, len(CLASSES), dtype=torch.long)
    labels[..., 2] = _halves(scene.cols)
    labels[..., 3] = _halves(scene.rows)[:, None]
    for thing in scene.things:
        labels[thing.row, thing.col : thing.col + thing.width, :2] = torch.tensor(_thing_label(thing))
    return labels.flatten(0, 1)


def _halves(size: int) -> Tensor:
    doubled = 2 * torch.arange(size) + 1
    return torch.where(doubled == size, IGNORED, (doubled > size).long())


def _thing_label(thing: Thing) -> tuple[int, int]:
    colour = list(COLOURS).index(thing.colour) + 1 if thing.kind == "shape" else 0
    return colour, NAMES.index(thing.name) + 1


class CellHeads(nn.Module):
    """Linear read-outs of what stands in a cell, used in training only."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(hidden, size) for name, size in CLASSES.items()})

    def loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the read-outs; embeddings (tokens, hidden), labels (tokens, 4)."""
        losses = []
        for column, (name, head) in enumerate(self.heads.items()):
            weight = torch.ones(CLASSES[name])
            weight[0] = EMPTY_WEIGHT if name in ("colour", "name") else 1.0
            losses.append(functional.cross_entropy(head(embeddings), labels[:, column], weight, ignore_index=IGNORED))
        return torch.stack(losses).sum()

    @torch.no_grad()
    def accuracy(self, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
        """Share of right read-outs per head, of names and colours only where something stands."""
        shares = {}
        for column, (name, head) in enumerate(self.heads.items()):
            wanted = labels[:, column]
            counted = wanted > 0 if name in ("colour", "name") else wanted != IGNORED
            shares[name] = (head(embeddings).argmax(-1) == wanted)[counted].float().mean().item()
        return shares
