"""The interface of a model family and the values it speaks in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class ImageLayout:
    """What a picture of a given size becomes in the prompt.

    `tokens` is the number of placeholder tokens, equal to the rows the tower gives for the picture. `grid` is
    (t, h, w) in unmerged patches for Qwen and (rows, columns) of tokens for LLaVA and Gemma.
    """

    tokens: int
    grid: tuple[int, ...]


@dataclass(frozen=True)
class ImageMarkup:
    """`marker` is what the chat template writes for a picture, `text` what is tokenized in its place.

    `text` holds exactly one image token, which is then expanded.
    """

    marker: str
    text: str


@dataclass(frozen=True)
class ImageSpan:
    """Where one image lies in an expanded prompt: `length` placeholders from token `offset` on."""

    offset: int
    length: int
    grid: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first token after the image."""
        return self.offset + self.length


@dataclass(frozen=True)
class Positions:
    """Rotary positions of a prompt.

    `ids` is int64 (rows, T), three rows for M-RoPE and one for plain positions. Token i >= T has position
    `next + (i - T)` in every row, so `next` is all that decoding needs to know about the images before it.
    """

    ids: npt.NDArray[np.int64]
    next: int


@dataclass(frozen=True)
class Pixels:
    """A picture ready for the tower: `values` float32, (patches, patch values) for Qwen, else (3, H, W)."""

    values: npt.NDArray[np.float32]
    layout: ImageLayout


class Family(Protocol):
    """One supported model family; immutable once loaded and safe to share between threads."""

    @property
    def name(self) -> str:
        """`model_type` of the checkpoint's config."""

    @property
    def image_token_id(self) -> int:
        """The marker in a rendered chat template, and the placeholder it is expanded to."""

    @property
    def position_rows(self) -> int:
        """Rows of `Positions.ids`."""

    @property
    def image_attention_is_causal(self) -> bool:
        """Whether a prefill chunk or a reused prefix may end inside an image; else its tokens attend to each other."""

    @property
    def image_markup(self) -> ImageMarkup | None:
        """What to put in place of the template's markers before tokenizing; None: they are image tokens already."""

    @property
    def preprocessing_fingerprint(self) -> str:
        """64 hex digits naming everything that turns pixels into tower input."""

    def layout(self, width: int, height: int) -> ImageLayout:
        """Tokens and grid of a picture of `width` x `height` pixels; InvalidImageError if it is too narrow."""

    def preprocess(self, image: Image.Image) -> Pixels:
        """Tower input of an upright RGB picture, with the same layout that `layout` states for its size."""

    def expand(self, token_ids: Sequence[int], layouts: Sequence[ImageLayout]) -> tuple[list[int], list[ImageSpan]]:
        """Replace each image marker by its placeholders; InvalidArgumentError unless markers and images agree."""

    def positions(self, length: int, spans: Sequence[ImageSpan]) -> Positions:
        """Positions of an expanded prompt of `length` tokens, from its spans in order and never from token ids."""
