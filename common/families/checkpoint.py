"""Reads the small files of a checkpoint directory: its JSON files, config and image processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoImageProcessor

from common.families.canonical import canonical_json
from triptych.digests import digest
from triptych.errors import CheckpointError

# Written by whoever saved the checkpoint.
_PROVENANCE = ("_name_or_path", "transformers_version")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`; CheckpointError when it is absent or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"the model directory {path.parent} has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content


def one_line(error: Exception) -> str:
    """What a library's error says, which may have several lines."""
    return " ".join(str(error).split())


def identifying_config(model_dir: Path) -> dict[str, Any]:
    """config.json without what changes nothing that is computed. Raises CheckpointError."""
    config = read_json(model_dir / "config.json")
    return {name: value for name, value in config.items() if name not in _PROVENANCE}


def config_fingerprint(model_dir: Path) -> str:
    """64 hex digits over the config alone: a quick way to tell checkpoints apart. Raises CheckpointError."""
    return digest("triptych.config.v1", canonical_json(identifying_config(model_dir)))


def read_config(model_dir: Path) -> Any:
    """The transformers config of the checkpoint; CheckpointError if it cannot be parsed."""
    read_json(model_dir / "config.json")
    try:
        return AutoConfig.from_pretrained(model_dir, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise CheckpointError(f"the config of {model_dir} is not usable: {one_line(error)}") from error


def read_image_processor(model_dir: Path) -> Any:
    """The PIL image processor of the checkpoint, also where torchvision is installed.

    The two backends differ by up to 0.03 in pixel values, and every encoder replica must compute the same.
    """
    read_json(model_dir / "preprocessor_config.json")
    try:
        load: Any = AutoImageProcessor.from_pretrained
        processor = load(model_dir, local_files_only=True, backend="pil")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise CheckpointError(f"the image processor of {model_dir} is not usable: {one_line(error)}") from error
    if getattr(processor, "backend", None) != "pil":
        raise CheckpointError(f"{type(processor).__name__} of {model_dir} has no PIL form")
    return processor
