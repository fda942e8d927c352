"""The vision half: from an RGB picture to the rows that stand for it in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from common.families.base import Family, ImageLayout
from common.families.checkpoint import read_config
from common.families.registry import load_family
from common.models.fingerprint import model_fingerprint
from common.models.loading import build_empty, load_stage, resident_bytes
from common.models.settings import check_servable
from common.models.vision import Features, Vision, build_vision
from common.models.weights import Stage, stored_tensors


@dataclass(frozen=True)
class Prepared:
    """A picture ready to encode: float32 `pixels` on the CPU and the layout that its features will have."""

    pixels: Tensor
    layout: ImageLayout

    @property
    def tokens(self) -> int:
        """Rows of each feature tensor, which is what encoding it costs."""
        return self.layout.tokens


class Tower:
    """A loaded vision half. It keeps no state between calls; `preprocess` is safe to run in many threads."""

    def __init__(self, module: Vision, family: Family, hidden_size: int, fingerprint: str) -> None:
        self._module = module
        parameter = next(module.parameters())
        self.family = family
        self.hidden_size = hidden_size
        self.fingerprint = fingerprint
        self.dtype: torch.dtype = parameter.dtype
        self.device: torch.device = parameter.device
        self.resident_bytes = resident_bytes(module)

    @classmethod
    def load(cls, model_dir: Path, dtype: torch.dtype, device: torch.device) -> Tower:
        """Read the vision tensors of `model_dir` and no others; raises CheckpointError."""
        family = load_family(model_dir)
        config = read_config(model_dir)
        check_servable(config, model_dir)
        module = build_empty(model_dir, lambda: build_vision(config))
        load_stage(module, stored_tensors(model_dir, Stage.TOWER), dtype, device)
        return cls(module, family, config.text_config.hidden_size, model_fingerprint(model_dir, Stage.TOWER))

    def preprocess(self, image: Image.Image) -> Prepared:
        """Resize, normalise and cut an upright RGB picture on the CPU; InvalidImageError if it is too narrow."""
        pixels = self.family.preprocess(image)
        return Prepared(torch.from_numpy(pixels.values), pixels.layout)

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Features]:
        """Features of each picture, in order, in the tower's dtype on its device.

        Every tensor is (tokens, hidden_size): "embeddings", and "deepstack.0", ... for Qwen3-VL. A picture's
        features do not depend on what else is in the batch.
        """
        if not batch:
            return []
        pixels = [prepared.pixels.to(self.device, self.dtype) for prepared in batch]
        return self._module(pixels, [prepared.layout for prepared in batch])  # type: ignore[no-any-return]
