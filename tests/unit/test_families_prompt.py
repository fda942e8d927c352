"""Placeholder expansion and positions, checked against hand-made prompts and against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from common.families import ImageLayout, ImageSpan
from common.families.prompt import expand_markers, mrope_positions, plain_positions
from triptych.errors import InvalidArgumentError

MARKER = 7


def test_each_marker_becomes_its_images_placeholders() -> None:
    layouts = [ImageLayout(3, (1, 2, 6)), ImageLayout(1, (1, 2, 2))]
    tokens, spans = expand_markers([1, MARKER, 2, MARKER], layouts, MARKER)
    assert tokens == [1, MARKER, MARKER, MARKER, 2, MARKER]
    assert spans == [ImageSpan(1, 3, (1, 2, 6)), ImageSpan(5, 1, (1, 2, 2))]
    assert [span.end for span in spans] == [4, 6]


def test_adjacent_images_stay_apart() -> None:
    _, spans = expand_markers([MARKER, MARKER], [ImageLayout(2, (1, 2)), ImageLayout(4, (2, 2))], MARKER)
    assert [(span.offset, span.length) for span in spans] == [(0, 2), (2, 4)]


def test_a_prompt_without_images_is_unchanged() -> None:
    assert expand_markers([1, 2, 3], [], MARKER) == ([1, 2, 3], [])


@pytest.mark.parametrize(("markers", "images"), [(0, 1), (1, 0), (2, 1), (1, 2)])
def test_other_numbers_of_images_are_refused_with_both_counts(markers: int, images: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{markers} image markers but the request has {images} images"):
        expand_markers([1, *[MARKER] * markers], [ImageLayout(1, (1, 1))] * images, MARKER)


def test_plain_positions_count_tokens() -> None:
    positions = plain_positions(4)
    assert positions.ids.tolist() == [[0, 1, 2, 3]]
    assert positions.ids.dtype == np.int64
    assert positions.next == 4


def test_an_image_costs_its_longer_side() -> None:
    positions = mrope_positions(9, [ImageSpan(1, 6, (1, 4, 6))], merge_size=2)
    assert positions.ids.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5],
        [0, 1, 1, 1, 2, 2, 2, 4, 5],
        [0, 1, 2, 3, 1, 2, 3, 4, 5],
    ]
    assert positions.next == 6


def test_placeholder_ids_in_the_text_have_no_say() -> None:
    """Positions come from spans: the same prompt with no span is text from end to end."""
    assert np.array_equal(mrope_positions(5, [], 2).ids, np.tile(np.arange(5), (3, 1)))


@pytest.mark.parametrize("model_class", [Qwen2VLModel, Qwen3VLModel])
@given(
    parts=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5)), max_size=4),
    tail=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_mrope_equals_transformers(model_class: Any, parts: list[tuple[int, int, int]], tail: int) -> None:
    grids = [(1, 2 * rows, 2 * columns) for _, rows, columns in parts]
    kinds: list[int] = []
    spans = []
    for (text, rows, columns), grid in zip(parts, grids, strict=True):
        kinds += [0] * text
        spans.append(ImageSpan(len(kinds), rows * columns, grid))
        kinds += [1] * rows * columns
    kinds += [0] * (tail if parts else tail + 1)
    ids = torch.ones(1, len(kinds), dtype=torch.int64)
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    model.config = AutoConfig.for_model("qwen2_vl")
    expected, delta = model.get_rope_index(ids, torch.tensor([kinds]), image_grid_thw=torch.tensor(grids))
    positions = mrope_positions(len(kinds), spans, merge_size=2)
    assert positions.ids.tolist() == expected[:, 0].tolist()
    assert positions.next == len(kinds) + int(delta)
