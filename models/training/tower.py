"""The vision tower run on many pictures of one size at once, and what it is supervised with.

transformers calls attention once per picture, which is slow in training. Here the pictures of one size share a call;
the mathematics is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel as VisionTower

from models.training.scenes import COLOURS, DIGITS, SHAPES, WORDS, Scene, Thing

NAMES = (*SHAPES, *DIGITS, *WORDS)
CLASSES = {"colour": tuple(COLOURS), "name": NAMES, "column": ("left", "right"), "row": ("top", "bottom")}
IGNORED = -100  # cross_entropy skips it
EMPTY_WEIGHT = 0.2  # most cells are empty
SHARPNESS = 8.0  # lets embeddings of the words' own size be read, else they grow until they drown the text


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
    return merged.view(len(pixels), rows * cols, -1)


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
    """(rows * cols, 4): colour, name, column and row half of every cell, as places in `CLASSES` from 1; 0 is none."""
    labels = torch.zeros(scene.rows, scene.cols, len(CLASSES), dtype=torch.long)
    labels[..., 2] = _halves(scene.cols)
    labels[..., 3] = _halves(scene.rows)[:, None]
    for thing in scene.things:
        labels[thing.row, thing.col : thing.col + thing.width, :2] = torch.tensor(_thing_label(thing))
    return labels.flatten(0, 1)


def _halves(size: int) -> Tensor:
    doubled = 2 * torch.arange(size) + 1
    return torch.where(doubled == size, 0, 1 + (doubled > size).long())


def _thing_label(thing: Thing) -> tuple[int, int]:
    colour = list(COLOURS).index(thing.colour) + 1 if thing.kind == "shape" else 0
    return colour, NAMES.index(thing.name) + 1


class CellHeads(nn.Module):
    """Reads what stands in a cell off its embedding by comparing it with the embeddings of the words for it.

    So the tower learns to spell what it sees in the language model's own terms. Used in training only.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, hidden: int) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(len(CLASSES), 1, hidden))
        self.words = [torch.tensor([_word_ids(tokenizer, word) for word in words]) for words in CLASSES.values()]

    def scores(self, seen: Tensor, table: Tensor) -> list[Tensor]:
        """Per head (tokens, classes), from embeddings (tokens, hidden) and the word table (vocabulary, hidden)."""
        return [
            SHARPNESS * seen @ torch.cat((nothing, table[ids].sum(1))).T
            for nothing, ids in zip(self.nothing, self.words, strict=True)
        ]

    def loss(self, seen: Tensor, table: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, summed over heads; labels are (tokens, 4)."""
        total = torch.zeros(())
        for scores, wanted in zip(self.scores(seen, table), labels.T, strict=True):
            weight = torch.ones(scores.shape[1])
            weight[0] = EMPTY_WEIGHT
            total = total + functional.cross_entropy(scores, wanted, weight)
        return total

    @torch.no_grad()
    def accuracy(self, seen: Tensor, table: Tensor, labels: Tensor) -> dict[str, float]:
        """Share of right readings per head, where there is something to read."""
        shares = {}
        for name, scores, wanted in zip(CLASSES, self.scores(seen, table), labels.T, strict=True):
            shares[name] = (scores.argmax(-1) == wanted)[wanted > 0].float().mean().item()
        return shares


def _word_ids(tokenizer: PreTrainedTokenizerBase, word: str) -> tuple[int, int]:
    """Its token at the start of a text and after a space; where one takes several tokens, the first of the other."""
    start, after = tokenizer.encode(word), tokenizer.encode(" " + word)
    return start[0], after[0] if len(after) == 1 else start[0]
