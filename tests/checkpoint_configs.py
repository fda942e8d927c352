"""Config and image processor settings of the tiny checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """How large a checkpoint is to be; `big` means about 25 million parameters in each half."""

    layers: int
    vocab_size: int
    max_positions: int
    max_image_tokens: int
    big: bool

    @property
    def width(self) -> int:
        """Hidden size of the text model."""
        return 512 if self.big else 64

    @property
    def vision_width(self) -> int:
        """Hidden size inside the tower."""
        return 512 if self.big else 32

    @property
    def vision_depth(self) -> int:
        """Layers of the tower."""
        return 8 if self.big else 3

    @property
    def text_depth(self) -> int:
        """Layers of the text model."""
        return 6 if self.big else self.layers


def config_dict(family: str, size: Size, special: dict[str, int], *, tie: bool, text: str) -> dict[str, Any]:
    """Arguments of `AutoConfig.for_model`, with four query and two key heads of 16 (128 when big) dimensions."""
    if family == "llava":
        return _llava(size, special, tie, text)
    if family == "gemma3":
        return _gemma(size, special, tie)
    head_dim = size.width // 4
    sections = {"qwen3_vl": [4, 2, 2]}.get(family, [2, 3, 3])
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [n * head_dim // 16 for n in sections]}
    if family == "qwen3_vl":
        rope["mrope_interleaved"] = True
    return {
        "model_type": family,
        "text_config": _text(size, special) | {"model_type": f"{family}_text", "rope_parameters": rope},
        "vision_config": _QWEN_TOWERS[family](size),
        "image_token_id": special["image"],
        "video_token_id": special["video"],
        "vision_start_token_id": special["vision_start"],
        "vision_end_token_id": special["vision_end"],
        "tie_word_embeddings": tie,
    }


def processor_dict(family: str, size: Size) -> dict[str, Any]:
    """`preprocessor_config.json`: at most `max_image_tokens` tokens a picture for Qwen, 9 for the others."""
    if family == "gemma3":
        return {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 42, "width": 42}}
    if family == "llava":
        return {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 42},
            "crop_size": {"height": 42, "width": 42},
        }
    patch = 16 if family == "qwen3_vl" else 14
    token = (2 * patch) ** 2
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 4 * token, "longest_edge": size.max_image_tokens * token},
    }


def _text(size: Size, special: dict[str, int]) -> dict[str, Any]:
    return {
        "vocab_size": size.vocab_size,
        "hidden_size": size.width,
        "intermediate_size": 4 * size.width if size.big else 2 * size.width,
        "num_hidden_layers": size.text_depth,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": size.width // 4,
        "max_position_embeddings": size.max_positions,
        "bos_token_id": special["start"],
        "eos_token_id": special["eos"],
        "pad_token_id": special["pad"],
    }


def _qwen2_tower(size: Size) -> dict[str, Any]:
    return {
        "model_type": "qwen2_vl_vision",
        "depth": size.vision_depth,
        "embed_dim": size.vision_width,
        "hidden_size": size.width,
        "num_heads": 2,
    }


def _qwen2_5_tower(size: Size) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_vl_vision",
        "depth": size.vision_depth,
        "hidden_size": size.vision_width,
        "intermediate_size": 3 * size.vision_width,
        "out_hidden_size": size.width,
        "num_heads": 2,
        "window_size": 56,  # two merged patches, so that these small pictures span several windows
        "fullatt_block_indexes": [size.vision_depth - 1],
    }


def _qwen3_tower(size: Size) -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl_vision",
        "depth": size.vision_depth,
        "hidden_size": size.vision_width,
        "intermediate_size": 4 * size.vision_width,
        "out_hidden_size": size.width,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    }


_QWEN_TOWERS = {"qwen2_vl": _qwen2_tower, "qwen2_5_vl": _qwen2_5_tower, "qwen3_vl": _qwen3_tower}


def _llava(size: Size, special: dict[str, int], tie: bool, text: str) -> dict[str, Any]:
    tower = {
        "model_type": "clip_vision_model",
        "hidden_size": size.vision_width,
        "intermediate_size": 4 * size.vision_width,
        "num_hidden_layers": size.vision_depth,
        "num_attention_heads": 2,
        "image_size": 42,
        "patch_size": 14,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text_config = _text(size, special) | {"model_type": text, "rope_parameters": rope}
    if text == "mistral":
        text_config["sliding_window"] = None
    return {
        "model_type": "llava",
        "text_config": text_config,
        "vision_config": tower,
        "image_token_index": special["image"],
        "image_seq_length": 9,
        "tie_word_embeddings": tie,
    }


def _gemma(size: Size, special: dict[str, int], tie: bool) -> dict[str, Any]:
    """Every second layer sees 24 tokens only, which is less than most prompts of tests and more than a picture."""
    tower = {
        "model_type": "siglip_vision_model",
        "hidden_size": size.vision_width,
        "intermediate_size": 4 * size.vision_width,
        "num_hidden_layers": size.vision_depth,
        "num_attention_heads": 2,
        "image_size": 42,
        "patch_size": 7,
        "vision_use_head": False,
    }
    kinds = ["sliding_attention", "full_attention"] * size.text_depth
    text = {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": size.width // 4,
        "sliding_window": 24,
        "layer_types": kinds[: size.text_depth],
    }
    return {
        "model_type": "gemma3",
        "text_config": _text(size, special) | text,
        "vision_config": tower,
        "mm_tokens_per_image": 9,
        "image_token_index": special["image"],
        "boi_token_index": special["image_start"],
        "eoi_token_index": special["image_end"],
        "tie_word_embeddings": tie,
    }
