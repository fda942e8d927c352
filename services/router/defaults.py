"""What a checkpoint says about answers: context length and default temperature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.families.checkpoint import read_config, read_json
from triptych.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class AnswerDefaults:
    """`context_length` and `max_tokens` in tokens; `temperature` where a request names none."""

    context_length: int
    max_tokens: int
    temperature: float


def load_defaults(model_dir: Path, context_length: int | None, max_tokens: int) -> AnswerDefaults:
    """Defaults of the checkpoint; `context_length` may only shorten the model's own (ConfigError)."""
    model_length = getattr(read_config(model_dir).get_text_config(), "max_position_embeddings", None)
    if not isinstance(model_length, int):
        raise CheckpointError(f"the config of {model_dir} has no max_position_embeddings")
    if context_length is not None and context_length > model_length:
        raise ConfigError(f"context-length {context_length} is more than the model's {model_length}")
    return AnswerDefaults(context_length or model_length, max_tokens, _temperature(model_dir))


def _temperature(model_dir: Path) -> float:
    path = model_dir / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    if generation.get("do_sample") is False:
        return 0.0
    return float(generation.get("temperature") or 1.0)
