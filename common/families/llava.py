"""LLaVA-1.5: every picture is scaled and cropped to one square, so it always takes the same number of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.families.base import ImageLayout
from common.families.checkpoint import read_image_processor
from common.families.square import SquareFamily
from triptych.errors import CheckpointError, InvalidImageError

_TEXT_MODELS = ("llama", "mistral", "qwen2")
_MAX_PADDED_PIXELS = 64_000_000


class LlavaFamily(SquareFamily):
    """A LLaVA-1.5 checkpoint: a CLIP tower, a two-layer projector and a plain language model."""

    name = "llava"
    image_attention_is_causal = True
    image_markup = None

    def __init__(self, image_token_id: int, processor: Any, layout: ImageLayout) -> None:
        super().__init__(image_token_id, processor, layout)
        self._pads_to_square = hasattr(processor, "pad_to_square") and bool(processor.do_pad)

    @classmethod
    def load(cls, model_dir: Path, config: Any) -> LlavaFamily:
        """Read the image processor beside `config`; CheckpointError for parts we cannot serve."""
        tower, text = config.vision_config.model_type, config.text_config.model_type
        if tower != "clip_vision_model":
            raise CheckpointError(f"{model_dir}: the LLaVA vision tower is {tower}, supported is clip_vision_model")
        if text not in _TEXT_MODELS:
            raise CheckpointError(f"{model_dir}: the LLaVA text model is {text}, supported are {_TEXT_MODELS}")
        family = cls(config.image_token_id, read_image_processor(model_dir), _fixed_layout(config))
        family.check_square(int(config.vision_config.image_size), model_dir)
        return family

    def layout(self, width: int, height: int) -> ImageLayout:
        """See `Family.layout`: the same for every picture that is not too narrow."""
        layout = super().layout(width, height)
        # The processor pads before it shrinks: a strip of a few megapixels would become a square of gigabytes.
        if self._pads_to_square and max(width, height) ** 2 > _MAX_PADDED_PIXELS:
            raise InvalidImageError(f"a picture of {width}x{height} pixels is too long to be padded to a square")
        return layout


def _fixed_layout(config: Any) -> ImageLayout:
    """Patches of the square; the `full` strategy keeps the tower's class token as one more row."""
    side = int(config.vision_config.image_size) // int(config.vision_config.patch_size)
    class_token = 1 if config.vision_feature_select_strategy == "full" else 0
    return ImageLayout(side * side + class_token, (side, side))
