"""Gemma 3: every picture is scaled to one square, and its tokens attend to each other both ways."""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import Any

from common.families.base import ImageLayout, ImageMarkup
from common.families.checkpoint import read_image_processor, read_json
from common.families.square import SquareFamily
from triptych.errors import CheckpointError


class GemmaFamily(SquareFamily):
    """A Gemma 3 checkpoint: a SigLIP tower, a pooling projector and a text model with sliding-window layers."""

    name = "gemma3"
    image_attention_is_causal = False

    def __init__(self, image_token_id: int, processor: Any, layout: ImageLayout, markup: ImageMarkup) -> None:
        super().__init__(image_token_id, processor, layout)
        self.image_markup = markup

    @classmethod
    def load(cls, model_dir: Path, config: Any) -> GemmaFamily:
        """Read the image processor and the names of the image tokens; CheckpointError for parts we cannot serve."""
        tower, text = config.vision_config.model_type, config.text_config.model_type
        if (tower, text) != ("siglip_vision_model", "gemma3_text"):
            raise CheckpointError(f"{model_dir}: a Gemma 3 of {tower} and {text} is not supported")
        processor = read_image_processor(model_dir)
        if getattr(processor, "do_pan_and_scan", None):
            raise CheckpointError(f"{model_dir}: pan-and-scan, which cuts a picture into several, is not supported")
        family = cls(config.image_token_id, processor, _layout(config, model_dir), _markup(model_dir))
        family.check_square(int(config.vision_config.image_size), model_dir)
        return family


def _layout(config: Any, model_dir: Path) -> ImageLayout:
    side = isqrt(config.mm_tokens_per_image)
    patches = config.vision_config.image_size // config.vision_config.patch_size
    if side * side != config.mm_tokens_per_image or patches % side:
        raise CheckpointError(f"{model_dir}: {patches}x{patches} patches do not pool to {config.mm_tokens_per_image}")
    return ImageLayout(side * side, (side, side))


def _markup(model_dir: Path) -> ImageMarkup:
    """A picture stands in a paragraph of its own, between its begin and end tokens."""
    config = read_json(model_dir / "tokenizer_config.json")
    extra = config.get("extra_special_tokens")
    named = {**config, **(extra if isinstance(extra, dict) else {})}
    names = ("boi_token", "image_token", "eoi_token")
    if missing := [name for name in names if not isinstance(named.get(name), str)]:
        raise CheckpointError(f"{model_dir}: tokenizer_config.json does not name the {missing[0]}")
    begin, image, end = (str(named[name]) for name in names)
    return ImageMarkup(begin, f"\n\n{begin}{image}{end}\n\n")
