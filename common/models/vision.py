"""The vision modules of the families, from tower input to rows of the language model's width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from common.families.base import ImageLayout

Features = dict[str, Tensor]
"""Named tensors (tokens, hidden) of one picture: "embeddings", and "deepstack.0", ... for Qwen3-VL."""


class QwenVision(nn.Module):
    """A Qwen-VL tower: pictures of any sizes run packed, attention stays within each."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        # Qwen2-VL's tower is the one of the three that is not registered for AutoModel.
        make: Any = AutoModel.from_config
        if config.model_type == "qwen2_vl":
            make = Qwen2VisionTransformerPretrainedModel._from_config
        self.visual: PreTrainedModel = make(config.vision_config, attn_implementation="sdpa")

    def forward(self, pixels: Sequence[Tensor], layouts: Sequence[ImageLayout]) -> list[Features]:
        """`pixels` are (patches, patch values) each."""
        grids = torch.tensor([layout.grid for layout in layouts], device=pixels[0].device)
        outputs = self.visual(torch.cat(tuple(pixels)), grid_thw=grids)
        maps = {"embeddings": outputs.pooler_output}
        for index, extra in enumerate(getattr(outputs, "deepstack_features", None) or ()):
            maps[f"deepstack.{index}"] = extra
        return _split(maps, [layout.tokens for layout in layouts])


class LlavaVision(nn.Module):
    """A CLIP tower and LLaVA's projector."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        make: Any = AutoModel.from_config
        self.vision_tower: PreTrainedModel = make(config.vision_config, attn_implementation="sdpa")
        self.multi_modal_projector = LlavaMultiModalProjector(config)
        layers = config.vision_feature_layer
        self._layers = [layers] if isinstance(layers, int) else list(layers)
        self._first_row = 1 if config.vision_feature_select_strategy == "default" else 0

    def forward(self, pixels: Sequence[Tensor], layouts: Sequence[ImageLayout]) -> list[Features]:
        """`pixels` are (3, side, side) each."""
        states = self.vision_tower(torch.stack(tuple(pixels)), output_hidden_states=True).hidden_states
        selected = torch.cat([states[layer][:, self._first_row :] for layer in self._layers], dim=-1)
        return [{"embeddings": rows.clone()} for rows in self.multi_modal_projector(selected)]


class GemmaVision(nn.Module):
    """A SigLIP tower and Gemma 3's projector, which averages squares of patches."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        make: Any = AutoModel.from_config
        self.vision_tower: PreTrainedModel = make(config.vision_config, attn_implementation="sdpa")
        self.multi_modal_projector = Gemma3MultiModalProjector(config)

    def forward(self, pixels: Sequence[Tensor], layouts: Sequence[ImageLayout]) -> list[Features]:
        """`pixels` are (3, side, side) each."""
        states = self.vision_tower(torch.stack(tuple(pixels))).last_hidden_state
        return [{"embeddings": rows.clone()} for rows in self.multi_modal_projector(states)]


Vision = QwenVision | LlavaVision | GemmaVision


def build_vision(config: Any) -> Vision:
    """The module of the config's family, on the current default device."""
    kinds: dict[str, type[Vision]] = {"llava": LlavaVision, "gemma3": GemmaVision}
    return kinds.get(config.model_type, QwenVision)(config)


def _split(maps: Features, lengths: list[int]) -> list[Features]:
    """Cut packed maps into one dict per picture; copies, so that keeping one does not keep the batch."""
    pieces = {name: torch.split(packed, lengths) for name, packed in maps.items()}
    return [{name: rows[index].clone() for name, rows in pieces.items()} for index in range(len(lengths))]
