"""What the engine must know of a language model's config, checked once while loading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.families.checkpoint import read_json
from common.families.registry import SUPPORTED
from triptych.errors import CheckpointError


@dataclass(frozen=True)
class TextSettings:
    """Shapes and special tokens of the language half; `max_positions` counts rotary positions."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    deepstack_maps: int
    tied: bool

    @classmethod
    def of(cls, config: Any, model_dir: Path) -> TextSettings:
        """Read them from the config of the whole checkpoint; CheckpointError for what we cannot compute."""
        check_servable(config, model_dir)
        text = config.text_config
        _check_attention(text, model_dir)
        _check_rope(text, model_dir)
        return cls(
            num_layers=text.num_hidden_layers,
            num_heads=text.num_attention_heads,
            num_kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            hidden_size=text.hidden_size,
            vocab_size=text.vocab_size,
            max_positions=text.max_position_embeddings,
            eos_token_ids=_eos_token_ids(config, model_dir),
            deepstack_maps=len(getattr(config.vision_config, "deepstack_visual_indexes", ())),
            tied=bool(config.tie_word_embeddings or getattr(text, "tie_word_embeddings", False)),
        )


def check_servable(config: Any, model_dir: Path) -> None:
    """CheckpointError for a family we do not know or weights in a quantised format."""
    if config.model_type not in SUPPORTED:
        raise CheckpointError(
            f"{model_dir} holds a model of type {config.model_type!r}; the supported types are {', '.join(SUPPORTED)}"
        )
    if getattr(config, "quantization_config", None):
        raise CheckpointError(f"{model_dir} is quantised; only float32, float16 and bfloat16 weights are supported")
    if config.model_type.startswith("qwen"):
        _check_tower(config, model_dir / "config.json")


def _check_tower(config: Any, file: Path) -> None:
    """What no weight tells apart; the other families take both figures from the config in one place."""
    vision, hidden = config.vision_config, config.text_config.hidden_size
    inner, outer = (
        (vision.embed_dim, vision.hidden_size)
        if config.model_type == "qwen2_vl"
        else (vision.hidden_size, vision.out_hidden_size)
    )
    if outer != hidden:
        raise CheckpointError(
            f"{file}: the tower's rows are {outer} wide, the language model's hidden_size is {hidden}"
        )
    if vision.num_heads < 1 or inner % vision.num_heads:
        raise CheckpointError(f"{file}: {vision.num_heads} heads do not share the tower's width of {inner}")


def _check_attention(text: Any, model_dir: Path) -> None:
    """What paged attention does not compute: soft caps, text that attends forward, and nothing."""
    if min(text.num_attention_heads, text.num_key_value_heads) < 1:
        raise CheckpointError(f"{model_dir / 'config.json'}: there is no attention head")
    for setting in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if getattr(text, setting, None):
            raise CheckpointError(f"{model_dir}: {setting} is not supported")


def _check_rope(text: Any, model_dir: Path) -> None:
    """These kinds rescale by the longest sequence of a call, so a packed batch would change everyone's answer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    # Gemma 3 has one set for each type of layer.
    by_layer = [each for each in parameters.values() if isinstance(each, dict)]
    for kind in (each.get("rope_type", "default") for each in by_layer or [parameters]):
        if kind in ("dynamic", "longrope"):
            raise CheckpointError(f"{model_dir}: rotary embeddings of type {kind!r} are not supported")


def _eos_token_ids(config: Any, model_dir: Path) -> tuple[int, ...]:
    """Tokens that end an answer: `generation_config.json` decides, then the configs."""
    candidates = [getattr(config, "eos_token_id", None), getattr(config.text_config, "eos_token_id", None)]
    generation = model_dir / "generation_config.json"
    if generation.exists():
        candidates.insert(0, read_json(generation).get("eos_token_id"))
    for found in candidates:
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
