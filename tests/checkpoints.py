"""Tiny random checkpoints of every supported family, saved as a real one would be.

They answer nonsense, but not degenerate nonsense: weights are scaled so that greedy tokens vary, depend on every
picture and have clear margins.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from transformers.initialization import no_init_weights

from tests.checkpoint_configs import Size, config_dict, processor_dict
from tests.checkpoint_tokenizer import save_tokenizer, special_token_ids

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "gemma3")


def build_checkpoint(
    family: str,
    directory: Path,
    *,
    tie: bool = False,
    shards: bool = False,
    old_names: bool = False,
    seed: int = 0,
    layers: int = 2,
    big: bool = False,
    text: str = "llama",
    full_features: bool = False,
    max_image_tokens: int = 24,
    max_positions: int = 2048,
    eos_token_ids: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a checkpoint of `family` into `directory` and return it; the same arguments give the same bytes.

    `old_names` saves tensors under the names from before transformers 5, `shards` in three files with an index,
    `big` with about 100 MB of float32 weights in each half. `text` is LLaVA's text model, `full_features` makes it
    keep the tower's class token, for 10 tokens a picture instead of 9. `eos_token_ids` become the tokens that end an
    answer, instead of the template's end token, which these weights practically never emit.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocab_size = save_tokenizer(family, directory)
    size = Size(layers, vocab_size, max_positions, max_image_tokens, big)
    config = AutoConfig.for_model(**config_dict(family, size, special_token_ids(directory), tie=tie, text=text))
    if full_features:
        config.vision_feature_select_strategy = "full"
    config.architectures = [_ARCHITECTURES[family]]
    config.save_pretrained(directory)
    _write_json(directory / "preprocessor_config.json", processor_dict(family, size))
    ends = list(eos_token_ids) or [special_token_ids(directory)["eos"]]
    GenerationConfig(eos_token_id=ends, pad_token_id=special_token_ids(directory)["pad"]).save_pretrained(directory)
    # Families share names and shapes of most text tensors; they should not share answers as well.
    family_seed = seed * len(FAMILIES) + FAMILIES.index(family)
    tensors = _random_weights(config, family_seed, tie, set(special_token_ids(directory).values()))
    tensors = {(_old_name(family, name) if old_names else name): value.to(dtype) for name, value in tensors.items()}
    _save(tensors, directory, shards)
    return directory


_ARCHITECTURES = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
}


def _random_weights(config: Any, seed: int, tie: bool, special: set[int]) -> dict[str, Tensor]:
    with no_init_weights():
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in sorted((name, value.shape) for name, value in model.state_dict().items()):
        tensors[name] = _random_tensor(name, shape, generator)
        if name in ("lm_head.weight", "model.language_model.embed_tokens.weight"):
            # Small rows: special tokens are read as usual (norms rescale them) but practically never written.
            tensors[name][sorted(special)] *= 0.02
    if tie:
        del tensors["lm_head.weight"]
    return tensors


def _random_tensor(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return 0.1 * noise
    if noise.ndim == 1:  # a norm's gain
        return 1 + 0.1 * noise
    if "embed_tokens" in name or "pos" in name:
        return 0.5 * noise
    gain = 3.0 if "lm_head" in name else 1.5
    fan_in = noise[0].numel()
    return noise.mul(gain / float(fan_in) ** 0.5)


def _old_name(family: str, name: str) -> str:
    """The name a tensor had before transformers 5, as most published checkpoints still have it."""
    if family.startswith("qwen"):
        return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    name = name.replace("model.language_model.", "language_model.model.")
    name = name.replace("model.vision_tower.", "vision_tower.vision_model.")
    return name.removeprefix("model.") if "multi_modal_projector" in name else name


def _save(tensors: dict[str, Tensor], directory: Path, shards: bool) -> None:
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    if not shards:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number in range(3):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        part = names[len(names) * number // 3 : len(names) * (number + 1) // 3]
        save_file({name: tensors[name] for name in part}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True), encoding="utf-8")


@dataclass(frozen=True)
class CheckpointCache:
    """Builds each asked-for checkpoint once, below `root`."""

    root: Path

    def get(self, family: str, **options: Any) -> Path:
        """The directory of `build_checkpoint(family, ..., **options)`; treat it as read-only."""
        return _build_cached(self.root, family, tuple(sorted(options.items())))


def session_checkpoints(factory: pytest.TempPathFactory) -> CheckpointCache:
    """One cache for the whole session, wherever a fixture asks for it."""
    return CheckpointCache(factory.getbasetemp() / "checkpoints")


@cache
def _build_cached(root: Path, family: str, options: tuple[tuple[str, Any], ...]) -> Path:
    name = "-".join([family, *(f"{key}={value}" for key, value in options)])
    return build_checkpoint(family, root / name.replace("/", "_"), **dict(options))
