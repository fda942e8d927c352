"""Chooses the family of a checkpoint directory."""

from __future__ import annotations

from pathlib import Path

from common.families.base import Family
from common.families.checkpoint import read_config, read_json
from common.families.gemma import GemmaFamily
from common.families.llava import LlavaFamily
from common.families.qwen import QwenFamily
from triptych.errors import CheckpointError

_FAMILIES: dict[str, type[QwenFamily | LlavaFamily | GemmaFamily]] = {
    "qwen2_vl": QwenFamily,
    "qwen2_5_vl": QwenFamily,
    "qwen3_vl": QwenFamily,
    "llava": LlavaFamily,
    "gemma3": GemmaFamily,
}
SUPPORTED = tuple(_FAMILIES)
"""Every `model_type` that can be served."""


def load_family(model_dir: Path) -> Family:
    """The family that the config's `model_type` names; CheckpointError for a broken or unsupported checkpoint."""
    name = read_json(model_dir / "config.json").get("model_type")
    if name not in SUPPORTED:
        raise CheckpointError(
            f"{model_dir} holds a model of type {name!r}; the supported types are {', '.join(SUPPORTED)}"
        )
    config = read_config(model_dir)
    return _FAMILIES[name].load(model_dir, config)
