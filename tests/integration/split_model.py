"""Runs a prompt through our two halves the way the services do, in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer

from common.models.language import LanguageModel, VisualInputs
from common.models.tower import Tower
from tests.integration.dense_attention import DenseAttention
from tests.rendered import marked_ids

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Prompt:
    """A chat with its pictures, ready for the language model; `visual` is None without DeepStack.

    `whole` are the images, as (begin, end), whose tokens attend to each other both ways.
    """

    token_ids: list[int]
    embeds: Tensor
    positions: Tensor
    visual: VisualInputs | None
    whole: list[tuple[int, int]]


class SplitModel:
    """Both halves of a checkpoint, loaded apart."""

    def __init__(self, model_dir: Path, dtype: torch.dtype = torch.float32) -> None:
        self.tower = Tower.load(model_dir, dtype, CPU)
        self.language = LanguageModel.load(model_dir, dtype=dtype, device=CPU)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)

    def prompt(self, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]) -> Prompt:
        """Render, tokenize, expand, encode and merge."""
        family = self.tower.family
        layouts = [family.layout(*image.size) for image in images]
        token_ids, spans = family.expand(marked_ids(self._tokenizer, family, messages), layouts)
        features = self.tower.encode([self.tower.preprocess(image) for image in images])
        embeds = self.language.embed(torch.tensor(token_ids))
        for span, feature in zip(spans, features, strict=True):
            embeds[span.offset : span.end] = feature["embeddings"]
        rows = torch.tensor([row for span in spans for row in range(span.offset, span.end)], dtype=torch.int64)
        maps = [name for name in (features[0] if features else {}) if name.startswith("deepstack.")]
        deepstack = tuple(torch.cat([feature[name] for feature in features]) for name in maps)
        positions = torch.from_numpy(family.positions(len(token_ids), spans).ids)
        whole = [] if family.image_attention_is_causal else [(span.offset, span.end) for span in spans]
        return Prompt(token_ids, embeds, positions, VisualInputs(rows, deepstack) if deepstack else None, whole)

    def logits(self, prompts: Sequence[Prompt]) -> list[Tensor]:
        """Logits (T, vocabulary) of each prompt, all computed in one packed forward."""
        lengths = [len(prompt.token_ids) for prompt in prompts]
        hidden = self.language.forward(
            torch.cat([prompt.embeds for prompt in prompts]),
            torch.cat([prompt.positions for prompt in prompts], dim=1),
            _pack([prompt.visual for prompt in prompts], lengths),
            DenseAttention(lengths, [prompt.whole for prompt in prompts]),
        )
        return list(self.language.logits(hidden).split(lengths))


def _pack(visuals: Sequence[VisualInputs | None], lengths: Sequence[int]) -> VisualInputs | None:
    rows, maps, offset = [], [], 0
    for visual, length in zip(visuals, lengths, strict=True):
        if visual is not None:
            rows.append(visual.rows + offset)
            maps.append(visual.deepstack)
        offset += length
    if not rows:
        return None
    return VisualInputs(torch.cat(rows), tuple(torch.cat(level) for level in zip(*maps, strict=True)))
