"""The shape of a checkpoint that we serve, from its config alone; weight files need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from common.capacity.shape import LanguageShape, Linear, ModelShape, VisionShape
from common.families.base import Family, ImageLayout
from common.families.checkpoint import read_config
from common.families.registry import load_family
from common.models.attention import register_attention
from common.models.language import LanguageModule
from common.models.loading import build_empty
from common.models.settings import TextSettings
from common.models.vision import build_vision

LARGEST_SIDE = 8000
"""Width in pixels of a picture that every image processor scales down to the most it lets through."""
DEFAULT_IMAGE_TOKENS = 16384
"""Tokens of the largest picture of published Qwen-VL checkpoints, for configs without an image processor."""


def checkpoint_shape(model_dir: Path, image_tokens: int | None = None) -> ModelShape:
    """Shape of a served family. `image_tokens` of the largest picture: unset, what the image processor lets through.

    Raises CheckpointError for a family that is not served; for others there are shape files.
    """
    config = read_config(model_dir)
    text = TextSettings.of(config, model_dir)
    language = _language(config.text_config, text)
    return ModelShape(
        name=model_dir.resolve().name,
        source=f"{config.model_type} config",
        language=language,
        vision=_vision(config, model_dir, image_tokens),
    )


def _vision(config: Any, model_dir: Path, image_tokens: int | None) -> VisionShape:
    fixed = {"llava": _llava, "gemma3": _gemma}.get(config.model_type)
    return fixed(config) if fixed else _qwen(config, _tokens(model_dir, image_tokens))


def meta_parameters(model_dir: Path) -> tuple[int, int]:
    """Parameters of (tower, language half), counted on modules that were built without memory for their tensors."""
    config = read_config(model_dir)
    tied = TextSettings.of(config, model_dir).tied
    register_attention()
    tower: nn.Module = build_empty(model_dir, lambda: build_vision(config))
    language = build_empty(model_dir, lambda: LanguageModule(config.text_config))
    if tied:
        language.tie()
    return _count(tower), _count(language)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _tokens(model_dir: Path, image_tokens: int | None) -> int:
    if image_tokens is not None:
        return image_tokens
    if not (model_dir / "preprocessor_config.json").exists():
        return DEFAULT_IMAGE_TOKENS
    return largest_layout(load_family(model_dir)).tokens


def largest_layout(family: Family) -> ImageLayout:
    """The layout with the most tokens, over pictures from square to four times as wide as high."""
    heights = range(LARGEST_SIDE // 4, LARGEST_SIDE + 1, LARGEST_SIDE // 32)
    return max((family.layout(LARGEST_SIDE, height) for height in heights), key=lambda layout: layout.tokens)


def _language(text: Any, settings: TextSettings) -> LanguageShape:
    return LanguageShape(
        layers=settings.num_layers,
        hidden=settings.hidden_size,
        intermediate=text.intermediate_size,
        heads=settings.num_heads,
        kv_heads=settings.num_kv_heads,
        head_dim=settings.head_dim,
        vocab=settings.vocab_size,
        max_positions=settings.max_positions,
        tied=settings.tied,
        qkv_bias=text.model_type in ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text"),
        qk_norm=text.model_type in ("qwen3_vl_text", "gemma3_text"),
        norms=4 if text.model_type == "gemma3_text" else 2,
    )


def _qwen(config: Any, image_tokens: int) -> VisionShape:
    """The three towers differ in norm, MLP and position table; Qwen3-VL has DeepStack mergers besides the last one."""
    tower, family = config.vision_config, config.model_type
    hidden = tower.embed_dim if family == "qwen2_vl" else tower.hidden_size
    merged = hidden * tower.spatial_merge_size**2
    maps = 1 + len(getattr(tower, "deepstack_visual_indexes", ()))
    out = config.text_config.hidden_size
    norm = hidden if family == "qwen2_5_vl" else 2 * hidden
    return VisionShape(
        layers=tower.depth,
        hidden=hidden,
        intermediate=int(hidden * tower.mlp_ratio) if family == "qwen2_vl" else tower.intermediate_size,
        heads=tower.num_heads,
        mlp="gated" if family == "qwen2_5_vl" else "plain",
        activation=_activation(tower.hidden_act),
        norm="rms" if family == "qwen2_5_vl" else "layer",
        patch_values=tower.in_channels * tower.temporal_patch_size * tower.patch_size**2,
        patch_bias=family == "qwen3_vl",
        positions=getattr(tower, "num_position_embeddings", 0),
        rotary=True,
        projector=(Linear(inputs=merged, outputs=merged), Linear(inputs=merged, outputs=out)) * maps,
        projector_extra=norm + (maps - 1) * 2 * merged,
        maps=maps,
        image_patches=image_tokens * tower.spatial_merge_size**2,
        image_tokens=image_tokens,
    )


def _llava(config: Any) -> VisionShape:
    tower, width = config.vision_config, config.text_config.hidden_size
    layers = config.vision_feature_layer
    selected = tower.hidden_size * (1 if isinstance(layers, int) else len(layers))
    bias = config.multimodal_projector_bias
    patches = (tower.image_size // tower.patch_size) ** 2
    return VisionShape(
        layers=tower.num_hidden_layers,
        hidden=tower.hidden_size,
        intermediate=tower.intermediate_size,
        heads=tower.num_attention_heads,
        activation=_activation(tower.hidden_act),
        patch_values=tower.num_channels * tower.patch_size**2,
        patch_bias=False,
        positions=patches + 1,
        class_token=True,
        outer_norms=4 * tower.hidden_size,
        keeps_layers=True,
        projector=(
            Linear(inputs=selected, outputs=width, bias=bias),
            Linear(inputs=width, outputs=width, bias=bias),
        ),
        image_patches=patches + 1,
        image_tokens=patches + (1 if config.vision_feature_select_strategy == "full" else 0),
        attention_patches=patches + 1,
    )


def _gemma(config: Any) -> VisionShape:
    tower = config.vision_config
    patches = (tower.image_size // tower.patch_size) ** 2
    return VisionShape(
        layers=tower.num_hidden_layers,
        hidden=tower.hidden_size,
        intermediate=tower.intermediate_size,
        heads=tower.num_attention_heads,
        activation=_activation(tower.hidden_act),
        patch_values=tower.num_channels * tower.patch_size**2,
        positions=patches,
        outer_norms=2 * tower.hidden_size,
        projector=(Linear(inputs=tower.hidden_size, outputs=config.text_config.hidden_size, bias=False),),
        projector_extra=tower.hidden_size,
        image_patches=patches,
        image_tokens=config.mm_tokens_per_image,
    )


def _activation(name: str) -> Any:
    return "gelu" if name.startswith("gelu") else name
