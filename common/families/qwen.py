"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: pictures of any size, merged patches, three rows of positions.

For still pictures the three share one position layout. They differ in how the language model deals the rows out to
rotary frequencies (in sections, or interleaved in Qwen3-VL), which is the model's own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from common.families.base import ImageLayout, ImageSpan, Pixels, Positions
from common.families.checkpoint import read_image_processor
from common.families.picture import check_size, preprocessing_digest, run_processor
from common.families.prompt import expand_markers, mrope_positions
from triptych.errors import CheckpointError, InternalError


class QwenFamily:
    """A Qwen-VL checkpoint; `name` tells which of the three."""

    position_rows = 3
    image_attention_is_causal = True
    image_markup = None

    def __init__(self, name: str, image_token_id: int, processor: Any) -> None:
        self.name = name
        self.image_token_id = image_token_id
        self.preprocessing_fingerprint = preprocessing_digest(processor, name)
        self._processor = processor
        self._patch_size = int(processor.patch_size)
        self._merge_size = int(processor.merge_size)
        size = dict(processor.size)
        self._min_pixels, self._max_pixels = int(size["shortest_edge"]), int(size["longest_edge"])

    @classmethod
    def load(cls, model_dir: Path, config: Any) -> QwenFamily:
        """Read the image processor beside `config`; CheckpointError where the two disagree."""
        processor = read_image_processor(model_dir)
        vision = config.vision_config
        pairs = {
            "patch_size": (getattr(processor, "patch_size", None), vision.patch_size),
            "merge_size": (getattr(processor, "merge_size", None), vision.spatial_merge_size),
            "temporal_patch_size": (getattr(processor, "temporal_patch_size", None), vision.temporal_patch_size),
            "do_resize": (getattr(processor, "do_resize", None), True),
        }
        for name, (stated, needed) in pairs.items():
            if stated != needed:
                raise CheckpointError(f"{model_dir}: the image processor's {name} is {stated}, the tower's {needed}")
        return cls(config.model_type, config.image_token_id, processor)

    def layout(self, width: int, height: int) -> ImageLayout:
        """See `Family.layout`. Tiny pictures are scaled up to the processor's minimum, the same on both axes."""
        check_size(width, height)
        resized = smart_resize(
            height, width, self._patch_size * self._merge_size, min_pixels=self._min_pixels, max_pixels=self._max_pixels
        )
        rows, columns = (side // self._patch_size for side in resized)
        return ImageLayout(rows * columns // self._merge_size**2, (1, rows, columns))

    def preprocess(self, image: Image.Image) -> Pixels:
        """See `Family.preprocess`; values are (patches, channels * frames * patch height * patch width)."""
        layout = self.layout(*image.size)
        outputs = run_processor(self._processor, image)
        grid = tuple(int(side) for side in outputs["image_grid_thw"][0])
        if grid != layout.grid:
            raise InternalError(f"a picture of {image.size} became {grid} patches instead of {layout.grid}")
        return Pixels(outputs["pixel_values"].astype(np.float32, copy=False), layout)

    def expand(self, token_ids: Sequence[int], layouts: Sequence[ImageLayout]) -> tuple[list[int], list[ImageSpan]]:
        """See `Family.expand`."""
        return expand_markers(token_ids, layouts, self.image_token_id)

    def positions(self, length: int, spans: Sequence[ImageSpan]) -> Positions:
        """See `Family.positions`."""
        return mrope_positions(length, spans, self._merge_size)
