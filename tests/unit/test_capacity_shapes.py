"""Shape files, and what follows from them without any weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.capacity_tables import ORDER, SHAPES, devices_table, pictures_table, stages_table
from common.capacity.costs import Workload, kv_layout_of
from common.capacity.shape import ModelShape, read_shape
from common.capacity.weights import embedding_bytes_per_token, language_parameters, vision_parameters
from triptych.errors import ConfigError

DOCUMENT = Path(__file__).parents[2] / "docs" / "capacity.md"

PUBLISHED = {
    "minicpm-v-2.6-like": 8_099_175_152,
    "internvl2-8b-like": 8_075_365_376,
    "internvl2-26b-like": 25_514_186_112,
    "qwen2-vl-2b-like": 2_208_985_600,
    "qwen2-vl-7b-like": 8_291_375_616,
    "qwen2.5-vl-7b-like": 8_292_166_656,
    "qwen3-vl-8b-like": 8_767_123_696,
    "llava-1.5-7b-like": 7_063_427_072,
}
"""Parameters of the published models."""


def shape(name: str) -> ModelShape:
    return read_shape(SHAPES / f"{name}.json")


def test_every_shape_is_in_the_tables() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in SHAPES.glob("*.json"))


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_shape_has_as_many_parameters_as_the_published_model(name: str, parameters: int) -> None:
    found = shape(name)
    assert vision_parameters(found.vision) + language_parameters(found.language) == parameters


@pytest.mark.parametrize(
    ("name", "embedding", "kv"),
    [
        ("qwen2-vl-2b-like", 3_072, 28_672),
        ("qwen2.5-vl-7b-like", 7_168, 57_344),
        ("qwen3-vl-8b-like", 32_768, 147_456),
        ("llava-1.5-7b-like", 8_192, 524_288),
    ],
)
def test_bytes_of_a_visual_token(name: str, embedding: int, kv: int) -> None:
    found = shape(name)
    assert embedding_bytes_per_token(found, 2) == embedding
    assert kv_layout_of(found, Workload()).bytes_per_token == kv


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    content = json.loads((SHAPES / "llava-1.5-7b-like.json").read_text())
    content["vision"]["depth"] = 3
    (tmp_path / "shape.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"vision\.depth"):
        read_shape(tmp_path / "shape.json")


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the shape"):
        read_shape(tmp_path / "none.json")


@pytest.mark.parametrize("table", [stages_table, pictures_table, devices_table])
def test_the_document_shows_what_the_command_prints(table: object) -> None:
    assert callable(table)
    assert "\n".join(table()) in DOCUMENT.read_text(encoding="utf-8")
