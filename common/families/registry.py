"""Chooses the family of a checkpoint directory."""

from __future__ import annotations

from pathlib import Path

from common.families.base import Family
from common.families.checkpoint import read_config, read_json
from triptych.errors import CheckpointError

_QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SUPPORTED = (*_QWEN, "llava")
"""Every `model_type` that can be served."""


def load_family(model_dir: Path) -> Family:
    """The family that the config's `model_type` names; CheckpointError for a broken or unsupported checkpoint."""
    name = read_json(model_dir / "config.json").get("model_type")
    if name not in SUPPORTED:
        raise CheckpointError(
            f"{model_dir} holds a model of type {name!r}; the supported types are {', '.join(SUPPORTED)}"
        )
    config = read_config(model_dir)
    # Imported late: transformers takes seconds, and most users of this package need only its dataclasses.
    if name in _QWEN:
        from common.families.qwen import QwenFamily

        return QwenFamily.load(model_dir, config)
    from common.families.llava import LlavaFamily

    return LlavaFamily.load(model_dir, config)
