"""The tower alone: as many rows as the layout promises, whatever else is in the batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch

from common.models.tower import Tower
from tests.checkpoints import FAMILIES, CheckpointCache
from tests.integration.split_model import CPU
from tests.pictures import noise
from tests.reference import Reference

SIZES = [(101, 67), (45, 190), (26, 28), (257, 27), (3, 3), (1, 1), (200, 1), (1, 200), (600, 800), (800, 600)]


@cache
def load(checkpoints: CheckpointCache, family: str) -> Tower:
    return Tower.load(checkpoints.get(family), torch.float32, CPU)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_the_layout_for_odd_sizes(checkpoints: CheckpointCache, family: str) -> None:
    tower = load(checkpoints, family)
    prepared = [tower.preprocess(noise(*size)) for size in SIZES]
    for size, item, features in zip(SIZES, prepared, tower.encode(prepared), strict=True):
        assert item.layout == tower.family.layout(*size)
        assert item.tokens >= 1
        assert {rows.shape for rows in features.values()} == {(item.tokens, tower.hidden_size)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_what_single_pictures_give(checkpoints: CheckpointCache, family: str) -> None:
    tower = load(checkpoints, family)
    prepared = [tower.preprocess(noise(*size, seed=3)) for size in SIZES[:4]]
    for item, together in zip(prepared, tower.encode(prepared), strict=True):
        alone = tower.encode([item])[0]
        assert alone.keys() == together.keys()
        for name, rows in alone.items():
            torch.testing.assert_close(together[name], rows, rtol=1e-5, atol=1e-5)


def test_an_empty_batch_is_fine(checkpoints: CheckpointCache) -> None:
    assert load(checkpoints, "qwen3_vl").encode([]) == []


def test_features_do_not_keep_the_batch_alive(checkpoints: CheckpointCache) -> None:
    tower = load(checkpoints, "qwen3_vl")
    for features in tower.encode([tower.preprocess(noise(60, 60)), tower.preprocess(noise(90, 60))]):
        assert all(rows.untyped_storage().nbytes() == rows.nbytes for rows in features.values())


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen2_5_vl", {"embeddings"}),
        ("llava", {"embeddings"}),
        ("qwen3_vl", {"embeddings", "deepstack.0", "deepstack.1"}),
    ],
)
def test_names_of_the_tensors(checkpoints: CheckpointCache, family: str, names: set[str]) -> None:
    tower = load(checkpoints, family)
    assert set(tower.encode([tower.preprocess(noise(50, 50))])[0]) == names


def test_features_equal_those_of_transformers(checkpoints: CheckpointCache) -> None:
    tower, picture = load(checkpoints, "qwen3_vl"), noise(120, 77)
    reference = Reference(checkpoints.get("qwen3_vl"))
    inputs = reference.inputs([{"role": "user", "content": [{"type": "image"}]}], [picture])
    with torch.no_grad():
        expected = reference.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    ours = tower.encode([tower.preprocess(picture)])[0]
    torch.testing.assert_close(ours["embeddings"], expected.pooler_output[0])
    for index, maps in enumerate(expected.deepstack_features):
        torch.testing.assert_close(ours[f"deepstack.{index}"], maps[0])


def test_llava_keeps_the_class_token_if_told_so(checkpoints: CheckpointCache) -> None:
    model_dir = checkpoints.get("llava", full_features=True)
    tower = Tower.load(model_dir, torch.float32, CPU)
    assert tower.family.layout(50, 50).tokens == 10
    assert len(tower.encode([tower.preprocess(noise(50, 50))])[0]["embeddings"]) == 10


def test_preprocessing_is_the_same_in_many_threads(checkpoints: CheckpointCache) -> None:
    tower = load(checkpoints, "qwen2_vl")
    pictures = [noise(40 + 9 * index, 120 - 7 * index, index) for index in range(8)]
    expected = [tower.preprocess(picture).pixels for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(tower.preprocess, pictures * 4), expected * 4, strict=True):
            assert torch.equal(found.pixels, wanted)


def test_bfloat16_features(checkpoints: CheckpointCache) -> None:
    exact = load(checkpoints, "qwen3_vl")
    tower = Tower.load(checkpoints.get("qwen3_vl"), torch.bfloat16, CPU)
    assert (tower.dtype, tower.fingerprint) == (torch.bfloat16, exact.fingerprint)
    assert tower.resident_bytes < 0.6 * exact.resident_bytes
    rows = tower.encode([tower.preprocess(noise(70, 40))])[0]["embeddings"]
    assert rows.dtype == torch.bfloat16
    wanted = exact.encode([exact.preprocess(noise(70, 40))])[0]["embeddings"]
    assert torch.nn.functional.cosine_similarity(rows.float(), wanted).min() > 0.99
