"""What families share whose image processor makes one square of every picture, with plain positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.families.base import ImageLayout, ImageSpan, Pixels, Positions
from common.families.picture import check_size, preprocessing_digest, run_processor
from common.families.prompt import expand_markers, plain_positions
from triptych.errors import CheckpointError


class SquareFamily:
    """All of a `Family` but its name, how it is loaded, and how its tokens attend to each other."""

    name: str
    position_rows = 1

    def __init__(self, image_token_id: int, processor: Any, layout: ImageLayout) -> None:
        self.image_token_id = image_token_id
        self.preprocessing_fingerprint = preprocessing_digest(processor, self.name)
        self._processor = processor
        self._layout = layout

    def check_square(self, side: int, model_dir: Path) -> None:
        """Try the processor on an oblong picture: whatever its settings are, the tower wants one square."""
        shape = self.preprocess(Image.new("RGB", (2 * side, side))).values.shape
        if shape != (3, side, side):
            raise CheckpointError(f"{model_dir}: the image processor gives {shape}, the tower takes {side}x{side}")

    def layout(self, width: int, height: int) -> ImageLayout:
        """See `Family.layout`: the same for every picture that is not too narrow."""
        check_size(width, height)
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
