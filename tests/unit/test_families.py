"""What a picture becomes in the prompt: sizes, refusals, preprocessing and where the family comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.families import Family, ImageLayout, load_family
from common.families.checkpoint import read_image_processor
from tests.checkpoints import FAMILIES, CheckpointCache, build_checkpoint
from tests.pictures import noise
from triptych.errors import CheckpointError, InvalidImageError

QWEN = FAMILIES[:3]


@cache
def load(checkpoints: CheckpointCache, family: str) -> Family:
    return load_family(checkpoints.get(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_describes_itself(checkpoints: CheckpointCache, family: str) -> None:
    loaded = load(checkpoints, family)
    config = json.loads((checkpoints.get(family) / "config.json").read_text())
    assert loaded.name == family
    assert loaded.image_token_id == config.get("image_token_id", config.get("image_token_index"))
    assert loaded.position_rows == (1 if family in ("llava", "gemma3") else 3)
    assert loaded.image_attention_is_causal is (family != "gemma3")


@pytest.mark.parametrize("family", QWEN)
def test_layout_agrees_with_the_processor(checkpoints: CheckpointCache, family: str) -> None:
    loaded, processor = load(checkpoints, family), read_image_processor(checkpoints.get(family))

    @given(st.integers(1, 3000), st.integers(1, 3000))
    @settings(max_examples=200, deadline=None)
    def check(width: int, height: int) -> None:
        if max(width, height) > 200 * min(width, height):
            with pytest.raises(InvalidImageError):
                loaded.layout(width, height)
            return
        layout = loaded.layout(width, height)
        assert layout.tokens * 4 == processor.get_number_of_image_patches(height, width)
        assert layout.tokens * 4 == np.prod(layout.grid)
        assert layout.tokens >= 1

    check()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(26, 28), (257, 27), (3, 3), (1, 3), (1, 1), (200, 1), (600, 800)])
def test_preprocessing_keeps_the_layout_on_both_axes(
    checkpoints: CheckpointCache, family: str, size: tuple[int, int]
) -> None:
    loaded = load(checkpoints, family)
    layouts = []
    for width, height in (size, size[::-1]):
        pixels = loaded.preprocess(noise(width, height))
        assert pixels.values.dtype == np.float32
        assert np.isfinite(pixels.values).all()
        assert pixels.layout == loaded.layout(width, height)
        layouts.append(pixels.layout)
    assert layouts[0].tokens == layouts[1].tokens
    assert sorted(layouts[0].grid) == sorted(layouts[1].grid)


@pytest.mark.parametrize("family", QWEN)
def test_width_and_height_are_not_mixed_up(checkpoints: CheckpointCache, family: str) -> None:
    _, rows, columns = load(checkpoints, family).layout(800, 300).grid
    assert columns > 2 * rows


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(300, 1), (10000, 1), (2010, 10)])
def test_narrow_pictures_are_refused_on_both_axes(
    checkpoints: CheckpointCache, family: str, size: tuple[int, int]
) -> None:
    loaded = load(checkpoints, family)
    for width, height in (size, size[::-1]):
        for refuse in (lambda: loaded.layout(width, height), lambda: loaded.preprocess(noise(width, height))):  # noqa: B023
            with pytest.raises(InvalidImageError, match="limit of 200:1"):
                refuse()


def test_an_empty_picture_is_refused(checkpoints: CheckpointCache) -> None:
    with pytest.raises(InvalidImageError, match="empty"):
        load(checkpoints, "qwen2_vl").layout(0, 5)


def test_llava_takes_nine_tokens_for_everything(checkpoints: CheckpointCache) -> None:
    sizes = [(1, 1), (42, 42), (2000, 30)]
    assert {load(checkpoints, "llava").layout(*size) for size in sizes} == {ImageLayout(9, (3, 3))}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_colour_mode_of_a_picture_does_not_matter(checkpoints: CheckpointCache, family: str) -> None:
    loaded, grey = load(checkpoints, family), noise(50, 50).convert("L")
    assert np.array_equal(loaded.preprocess(grey).values, loaded.preprocess(grey.convert("RGB")).values)


def test_preprocessing_fingerprint_follows_the_settings(checkpoints: CheckpointCache) -> None:
    first = load(checkpoints, "qwen2_vl").preprocessing_fingerprint
    assert len(bytes.fromhex(first)) == 32
    assert first == load_family(checkpoints.get("qwen2_vl", seed=1)).preprocessing_fingerprint
    assert first != load_family(checkpoints.get("qwen2_vl", max_image_tokens=20)).preprocessing_fingerprint
    assert first != load(checkpoints, "qwen2_5_vl").preprocessing_fingerprint


def edited(directory: Path, family: str, file: str, **changes: object) -> Path:
    build_checkpoint(family, directory)
    content = json.loads((directory / file).read_text())
    (directory / file).write_text(json.dumps(content | changes))
    return directory


@pytest.mark.parametrize(
    ("family", "file", "changes", "message"),
    [
        ("qwen2_vl", "config.json", {"model_type": "blip"}, "'blip'; the supported types are qwen2_vl, .*llava"),
        ("qwen2_vl", "preprocessor_config.json", {"patch_size": 16}, "patch_size is 16, the tower's 14"),
        ("qwen2_vl", "preprocessor_config.json", {"do_resize": False}, "do_resize"),
        ("qwen2_vl", "preprocessor_config.json", {"image_processor_type": "NoSuch"}, "image processor"),
        ("llava", "preprocessor_config.json", {"do_center_crop": False}, "the tower takes 42x42"),
        ("llava", "config.json", {"vision_config": {"model_type": "siglip_vision_model"}}, "clip_vision_model"),
        ("llava", "config.json", {"text_config": {"model_type": "gemma"}}, "text model is gemma"),
        ("llava", "config.json", {"vision_feature_select_strategy": "some"}, "config"),
    ],
)
def test_unusable_checkpoints_are_refused_with_a_reason(
    tmp_path: Path, family: str, file: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_family(edited(tmp_path, family, file, **changes))


def test_llava_that_pads_to_a_square(tmp_path: Path) -> None:
    changes = {"image_processor_type": "LlavaImageProcessor", "do_pad": True}
    family = load_family(edited(tmp_path, "llava", "preprocessor_config.json", **changes))
    assert family.preprocess(noise(100, 20)).values.shape == (3, 42, 42)
    for size in ((9000, 100), (100, 9000)):
        with pytest.raises(InvalidImageError, match="too long to be padded"):
            family.layout(*size)


def test_a_directory_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_family(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        load_family(tmp_path)


_WITHOUT_TORCH = """
import sys; sys.modules["torch"] = None
from pathlib import Path
from common.families import load_family
from transformers import AutoTokenizer
for path in sys.argv[1:]:
    family = load_family(Path(path))
    AutoTokenizer.from_pretrained(path).apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    print(family.layout(100, 50).tokens, family.preprocessing_fingerprint)
"""


def test_the_router_needs_no_torch(checkpoints: CheckpointCache) -> None:
    """And it computes the same layout and fingerprint without it."""
    directories = [checkpoints.get(family) for family in FAMILIES]
    command = [sys.executable, "-c", _WITHOUT_TORCH, *map(str, directories)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    loaded = [load(checkpoints, family) for family in FAMILIES]
    expected = [f"{family.layout(100, 50).tokens} {family.preprocessing_fingerprint}" for family in loaded]
    assert output.split("\n")[:-1] == expected
