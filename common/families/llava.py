"""LLaVA-1.5: every picture is scaled and cropped to one square, so it always takes the same number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.families.base import ImageLayout, ImageSpan, Pixels, Positions
from common.families.checkpoint import read_image_processor
from common.families.picture import check_size, preprocessing_digest, run_processor
from common.families.prompt import expand_markers, plain_positions
from triptych.errors import CheckpointError, InvalidImageError

_TEXT_MODELS = ("llama", "mistral", "qwen2")
_MAX_PADDED_PIXELS = 64_000_000


class LlavaFamily:
    """A LLaVA-1.5 checkpoint: a CLIP tower, a two-layer projector and a plain language model."""

    name = "llava"
    position_rows = 1
    image_attention_is_causal = True
    image_markup = None

    def __init__(self, image_token_id: int, processor: Any, layout: ImageLayout) -> None:
        self.image_token_id = image_token_id
        self.preprocessing_fingerprint = preprocessing_digest(processor, self.name)
        self._processor = processor
        self._layout = layout
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
        family._check_square(int(config.vision_config.image_size), model_dir)
        return family

    def _check_square(self, side: int, model_dir: Path) -> None:
        """Try the processor on an oblong picture: whatever its settings are, the tower wants one square."""
        shape = self.preprocess(Image.new("RGB", (2 * side, side))).values.shape
        if shape != (3, side, side):
            raise CheckpointError(f"{model_dir}: the image processor gives {shape}, the tower takes {side}x{side}")

    def layout(self, width: int, height: int) -> ImageLayout:
        """See `Family.layout`: the same for every picture that is not too narrow."""
        check_size(width, height)
        # The processor pads before it shrinks: a strip of a few megapixels would become a square of gigabytes.
        if self._pads_to_square and max(width, height) ** 2 > _MAX_PADDED_PIXELS:
            raise InvalidImageError(f"a picture of {width}x{height} pixels is too long to be padded to a square")
        return self._layout

    def preprocess(self, image: Image.Image) -> Pixels:
        """See `Family.preprocess`; values are (3, side, side)."""
        layout = self.layout(*image.size)
        outputs = run_processor(self._processor, image)
        return Pixels(outputs["pixel_values"][0].astype(np.float32, copy=False), layout)

    def expand(self, token_ids: Sequence[int], layouts: Sequence[ImageLayout]) -> tuple[list[int], list[ImageSpan]]:
        """See `Family.expand`."""
        return expand_markers(token_ids, layouts, self.image_token_id)

    def positions(self, length: int, spans: Sequence[ImageSpan]) -> Positions:
        """See `Family.positions`."""
        return plain_positions(length)


def _fixed_layout(config: Any) -> ImageLayout:
    """Patches of the square; the `full` strategy keeps the tower's class token as one more row."""
    side = int(config.vision_config.image_size) // int(config.vision_config.patch_size)
    class_token = 1 if config.vision_feature_select_strategy == "full" else 0
    return ImageLayout(side * side + class_token, (side, side))
