"""The demo checkpoint: its architecture, and how it is written so that a reader never meets half of it."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path

from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from models.training.scenes import CELL

SMALLEST_PIXELS = (3 * CELL) ** 2
LARGEST_PIXELS = (16 * CELL) ** 2


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2VLForConditionalGeneration:
    """A freshly initialised Qwen2-VL of about three million parameters."""
    image, video, start, end = _ids(tokenizer, "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    config = Qwen2VLConfig(
        vision_config=dict(depth=3, embed_dim=128, num_heads=4, mlp_ratio=4, hidden_size=192),
        text_config=dict(
            vocab_size=-(-len(tokenizer) // 64) * 64,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    return Qwen2VLForConditionalGeneration(config)


def _ids(tokenizer: PreTrainedTokenizerFast, *tokens: str) -> list[int]:
    return [tokenizer.get_vocab()[token] for token in tokens]


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """Qwen2-VL's preprocessing, for small pictures."""
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": SMALLEST_PIXELS, "longest_edge": LARGEST_PIXELS},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def save_checkpoint(
    model: Qwen2VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write everything in bf16 to a new directory beside `directory`, then swap the two."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    half = copy.deepcopy(model)
    half.bfloat16()
    half.generation_config = _generation_config(tokenizer)
    half.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    build_image_processor().save_pretrained(fresh)
    _open(fresh)
    _swap(fresh, directory)


def _generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )


def _open(directory: Path) -> None:
    """Readable by all: both mkdtemp and safetensors keep what they make to its owner."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)


def _swap(fresh: Path, directory: Path) -> None:
    old = fresh.with_name(fresh.name + ".old")
    if directory.exists():
        os.rename(directory, old)
    os.rename(fresh, directory)
    shutil.rmtree(old, ignore_errors=True)
