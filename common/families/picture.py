"""What every family does with a picture: refuse impossible sizes, run the image processor, name its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from common.families.canonical import canonical_json
from triptych.digests import digest
from triptych.errors import InvalidImageError

MAX_ASPECT_RATIO = 200
"""Qwen's processor refuses longer pictures. LLaVA would first stretch one to millions of columns and then crop it."""

_SETTINGS_WITHOUT_EFFECT = ("processor_class", "_processor_class", "feature_extractor_type")


def check_size(width: int, height: int) -> None:
    """Raises InvalidImageError for an empty picture or one longer than `MAX_ASPECT_RATIO` times its other side."""
    short, long = sorted((width, height))
    if short < 1:
        raise InvalidImageError(f"a picture of {width}x{height} pixels is empty")
    if long > MAX_ASPECT_RATIO * short:
        raise InvalidImageError(
            f"a picture of {width}x{height} pixels is too narrow: "
            f"its aspect ratio exceeds the limit of {MAX_ASPECT_RATIO}:1"
        )


def run_processor(processor: Any, image: Image.Image) -> dict[str, npt.NDArray[Any]]:
    """Outputs of the image processor for one upright RGB picture, as numpy arrays with a leading batch axis."""
    # Handed over as a PIL image on purpose: of an array 1 or 3 pixels high the processor takes rows for channels.
    outputs = processor.preprocess([image.convert("RGB")], return_tensors="np")
    return {name: np.asarray(value) for name, value in outputs.items()}


def preprocessing_digest(processor: Any, family: str) -> str:
    """Fingerprint of the processor's settings: same digest, same tower input for the same pixels."""
    settings = processor.to_dict()
    for name in _SETTINGS_WITHOUT_EFFECT:
        settings.pop(name, None)
    return digest("triptych.preprocessing.v1", family.encode(), canonical_json(settings))
