"""Placeholder expansion and rotary positions: the arithmetic of images in a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.families.base import ImageLayout, ImageSpan, Positions
from triptych.errors import InvalidArgumentError


def expand_markers(
    token_ids: Sequence[int], layouts: Sequence[ImageLayout], marker: int
) -> tuple[list[int], list[ImageSpan]]:
    """Expand each `marker` to as many placeholders as its image has tokens; raises InvalidArgumentError.

    The caller guarantees that only the chat template produced markers; text typed by a user never does.
    """
    markers = sum(token == marker for token in token_ids)
    if markers != len(layouts):
        raise InvalidArgumentError(
            f"the rendered prompt has {markers} image markers but the request has {len(layouts)} images",
            param="messages",
        )
    remaining = iter(layouts)
    expanded: list[int] = []
    spans: list[ImageSpan] = []
    for token in token_ids:
        if token != marker:
            expanded.append(token)
            continue
        layout = next(remaining)
        spans.append(ImageSpan(len(expanded), layout.tokens, layout.grid))
        expanded.extend([marker] * layout.tokens)
    return expanded, spans


def plain_positions(length: int) -> Positions:
    """One row 0..length-1: images count like text."""
    return Positions(np.arange(length, dtype=np.int64)[None], length)


def mrope_positions(length: int, spans: Sequence[ImageSpan], merge_size: int) -> Positions:
    """Multimodal rotary positions (Qwen2-VL, arXiv 2409.12191): rows are time, height and width.

    Text moves all rows together. An image takes the next free position as its corner, spreads over (t, h, w) of
    its merged grid, and text goes on after the larger of its sides, so a picture costs fewer positions than tokens.
    """
    ids = np.empty((3, length), dtype=np.int64)
    token, position = 0, 0
    for span in spans:
        text = span.offset - token
        ids[:, token : span.offset] = np.arange(position, position + text)
        position += text
        frames, height, width = span.grid
        cells = np.indices((frames, height // merge_size, width // merge_size)).reshape(3, -1)
        ids[:, span.offset : span.end] = cells + position
        position += max(height, width) // merge_size
        token = span.end
    following = position + length - token
    ids[:, token:] = np.arange(position, following)
    return Positions(ids, following)
