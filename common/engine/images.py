"""Putting image embeddings where a batch's placeholder tokens are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from common.engine.batch import PackedBatch, Segment
from common.engine.sequence import Sequence
from common.models.language import VisualInputs
from triptych.errors import InternalError

EMBEDDINGS = "embeddings"
DEEPSTACK = "deepstack."


class ImageTensors(Protocol):
    """Gives the named tensors of one image of a sequence; `index` counts `sequence.images`.

    "embeddings" is (tokens, H); "deepstack.0", "deepstack.1", ... have the same shape (Qwen3-VL). Tensors may be on
    any device and of any float type; they are brought to the model's.
    """

    def __call__(self, sequence: Sequence, index: int) -> Mapping[str, Tensor]:
        """The tensors of image `index` of `sequence`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one image that falls into a segment: rows first..first+length-1 of the batch, from `offset` on."""

    sequence: Sequence
    index: int
    first: int
    offset: int
    length: int


def pieces(batch: PackedBatch) -> list[Piece]:
    """Every part of an image that the batch computes, by row. A chunk may begin and end anywhere inside an image."""
    return [piece for segment in batch.segments for piece in _pieces_of(segment)]


def _pieces_of(segment: Segment) -> Iterator[Piece]:
    for index, span in enumerate(segment.sequence.images):
        start, end = max(segment.start, span.offset), min(segment.end, span.offset + span.length)
        if start < end:
            row = segment.row + start - segment.start
            yield Piece(segment.sequence, index, row, start - span.offset, end - start)


def splice(embeds: Tensor, batch: PackedBatch, images: ImageTensors) -> VisualInputs | None:
    """Overwrite placeholder rows of `embeds` (T, H) in place and return the visual inputs, None without any image.

    Raises InternalError if an image's tensors do not have as many rows as its placeholders.
    """
    found = pieces(batch)
    if not found:
        return None
    tensors = [images(piece.sequence, piece.index) for piece in found]
    for piece, named in zip(found, tensors, strict=True):
        embeds[piece.first : piece.first + piece.length] = _rows(piece, named, EMBEDDINGS, embeds)
    rows = torch.cat([torch.arange(piece.first, piece.first + piece.length) for piece in found])
    return VisualInputs(rows=rows.to(embeds.device), deepstack=_deepstack(found, tensors, embeds))


def _deepstack(found: list[Piece], tensors: list[Mapping[str, Tensor]], like: Tensor) -> tuple[Tensor, ...]:
    levels = {sum(name.startswith(DEEPSTACK) for name in named) for named in tensors}
    if len(levels) != 1:
        raise InternalError(f"images of one step have {sorted(levels)} deepstack maps")
    pairs = list(zip(found, tensors, strict=True))
    return tuple(
        torch.cat([_rows(piece, named, f"{DEEPSTACK}{level}", like) for piece, named in pairs])
        for level in range(levels.pop())
    )


def _rows(piece: Piece, named: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    expected = (piece.sequence.images[piece.index].length, like.shape[-1])
    tensor = named.get(name)
    if tensor is None or tuple(tensor.shape) != expected:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise InternalError(f"{name} of image {piece.index} is {found}, {expected} wanted")
    return tensor[piece.offset : piece.offset + piece.length].to(like.device, like.dtype)
