"""Dialogues as tensors: token ids, labels, 3-D positions and the pictures grouped by size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen2VLForConditionalGeneration

from models.training.dialogues import Dialogue
from models.training.scenes import Scene, draw
from models.training.tower import IGNORED, cell_labels

PLACEHOLDER = "<|image_pad|>"


@dataclass(frozen=True)
class Pictures:
    """All pictures of one size: `pixels` (pictures, patches, patch), `cells` (pictures, tokens, 4)."""

    rows: int
    cols: int
    pixels: Tensor
    cells: Tensor


@dataclass(frozen=True)
class Batch:
    """`ids`, `labels` (batch, length); `positions` (3, batch, length); `slots[i]` are the flat places of group i."""

    ids: Tensor
    labels: Tensor
    positions: Tensor
    groups: list[Pictures]
    slots: list[Tensor]


def patchify(picture: Image.Image) -> Tensor:
    """(patches, 1176) as Qwen2VLImageProcessor makes it, for a picture that needs no resizing."""
    pixels = torch.from_numpy(np.array(picture, dtype=np.float32)).permute(2, 0, 1) / 127.5 - 1
    rows, cols = picture.height // 28, picture.width // 28
    tiles = pixels.view(3, rows, 2, 14, cols, 2, 14).permute(1, 4, 2, 5, 0, 3, 6)
    return tiles.unsqueeze(5).expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(4 * rows * cols, -1)


def group_pictures(scenes: Sequence[Scene]) -> tuple[list[Pictures], list[list[int]]]:
    """The scenes drawn and stacked by size, and which scenes each group holds."""
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, scene in enumerate(scenes):
        members[scene.rows, scene.cols].append(index)
    groups = []
    for (rows, cols), indices in members.items():
        pixels = torch.stack([patchify(draw(scenes[index])) for index in indices])
        groups.append(Pictures(rows, cols, pixels, torch.stack([cell_labels(scenes[index]) for index in indices])))
    return groups, list(members.values())


def build_batch(
    dialogues: Sequence[Dialogue], tokenizer: PreTrainedTokenizerBase, model: Qwen2VLForConditionalGeneration
) -> Batch:
    """Whole dialogues, padded on the right; the answers and their end marks are the labels."""
    rows = [_token_ids(dialogue, tokenizer) for dialogue in dialogues]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=int(tokenizer.pad_token_id))
    labels = torch.stack([_labels(row, tokenizer) for row in ids])
    scenes = [scene for dialogue in dialogues for scene in dialogue.scenes]
    pictured = ids == model.config.image_token_id
    grids = torch.tensor([(1, 2 * scene.rows, 2 * scene.cols) for scene in scenes]).view(-1, 3)
    positions, _ = model.model.get_rope_index(ids, pictured.int(), grids)
    places = pictured.flatten().nonzero().flatten().split([scene.rows * scene.cols for scene in scenes])
    groups, members = group_pictures(scenes)
    slots = [torch.stack([places[index] for index in indices]) for indices in members]
    return Batch(ids, labels, positions, groups, slots)


def _token_ids(dialogue: Dialogue, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    text = str(tokenizer.apply_chat_template(dialogue.transcript(), tokenize=False))
    head, *tails = text.split(PLACEHOLDER)
    for scene, tail in zip(dialogue.scenes, tails, strict=True):
        head += PLACEHOLDER * (scene.rows * scene.cols) + tail
    return torch.tensor(tokenizer(head)["input_ids"])


def _labels(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The ids of the assistant's words and end marks; everything else is ignored."""
    vocabulary = tokenizer.get_vocab()
    start, role, end = (vocabulary[token] for token in ("<|im_start|>", "assistant", "<|im_end|>"))
    labels = torch.full_like(ids, IGNORED)
    opens = ((ids[:-1] == start) & (ids[1:] == role)).nonzero().flatten().tolist()
    ends = (ids == end).nonzero().flatten()
    for at in opens:
        stop = int(ends[ends > at][0]) + 1
        labels[at + 3 : stop] = ids[at + 3 : stop]
    return labels
