"""What gives a picture another embedding key, from its file to the checkpoint, and what does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.families import load_family
from common.identity import cache_scope, embedding_key
from common.identity.blocks import BlockChain, KeyedSpan, block_root
from common.images import ImageLimits, decode_image
from common.models.fingerprint import model_fingerprint
from common.models.weights import Stage
from tests.checkpoints import CheckpointCache
from tests.pictures import noise, save

PICTURE = noise(40, 30, 5)


@dataclass(frozen=True)
class Case:
    """Everything that an embedding depends on."""

    model: Path
    file: bytes = save(PICTURE, "PNG")
    dtype: str = "float32"
    salt: str | None = None
    detail: str = ""

    @property
    def key(self) -> str:
        """As router and encoder compute it together."""
        return embedding_key(
            decode_image(self.file, ImageLimits()).image_id,
            model_fingerprint=fingerprint(self.model),
            preprocessing_fingerprint=load_family(self.model).preprocessing_fingerprint,
            dtype=self.dtype,
            scope=cache_scope("", self.salt),
            detail=self.detail,
        )


@cache
def fingerprint(model: Path) -> str:
    return model_fingerprint(model, Stage.TOWER)


@pytest.fixture
def case(checkpoints: CheckpointCache) -> Case:
    return Case(checkpoints.get("qwen2_vl"))


def one_pixel() -> bytes:
    values = np.array(PICTURE)
    values[7, 11, 2] ^= 1
    return save(Image.fromarray(values), "PNG")


@pytest.mark.parametrize(
    "change",
    [
        {"file": one_pixel()},
        {"file": save(PICTURE.resize((41, 30)), "PNG")},
        {"file": save(PICTURE.transpose(Image.Transpose.ROTATE_90), "PNG")},
        {"detail": "low"},
        {"dtype": "bfloat16"},
        {"salt": "blue"},
    ],
    ids=["pixel", "size", "turn", "detail", "tower dtype", "scope"],
)
def test_a_change_of_the_request_gives_another_key(case: Case, change: dict[str, Any]) -> None:
    assert replace(case, **change).key != case.key


SETTINGS: dict[str, Callable[[dict[str, Any]], None]] = {
    "resize limit": lambda settings: settings["size"].update(longest_edge=settings["size"]["longest_edge"] // 2),
    "resize minimum": lambda settings: settings["size"].update(shortest_edge=settings["size"]["shortest_edge"] * 2),
    "mean": lambda settings: settings.update(image_mean=[0.5, 0.5, 0.5]),
    "rescaling": lambda settings: settings.update(rescale_factor=1 / 127.5),
    "resampling": lambda settings: settings.update(resample=2),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_image_processor_gives_another_key(case: Case, tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in case.model.iterdir():
        (model / file.name).symlink_to(file)
    (model / "preprocessor_config.json").unlink()
    settings = json.loads((case.model / "preprocessor_config.json").read_text())
    SETTINGS[name](settings)
    (model / "preprocessor_config.json").write_text(json.dumps(settings))
    assert replace(case, model=model).key != case.key


def test_another_revision_of_the_model_gives_another_key(case: Case, checkpoints: CheckpointCache) -> None:
    assert replace(case, model=checkpoints.get("qwen2_vl", seed=1)).key != case.key


def test_the_tower_sees_a_turned_picture_upright(case: Case) -> None:
    """The tag stays in the decoded picture's metadata; nobody behind may apply it again."""
    exif, family = Image.Exif(), load_family(case.model)
    exif[0x0112] = 3
    turned = decode_image(save(PICTURE.transpose(Image.Transpose.ROTATE_180), "PNG", exif=exif), ImageLimits())
    seen, expected = (family.preprocess(image).values for image in (turned.image, PICTURE))
    assert np.array_equal(seen, expected)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_another_lossless_file_has_the_same_key(case: Case, kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    assert replace(case, file=save(PICTURE, kind, **options)).key == case.key


def test_another_place_of_the_same_model_has_the_same_key(case: Case, tmp_path: Path) -> None:
    shutil.copytree(case.model, tmp_path / "copy")
    assert replace(case, model=tmp_path / "copy").key == case.key


def test_jpegs_that_differ_near_their_end_are_other_pictures() -> None:
    """The same size and tables; the scans part in their last bytes."""
    values = np.array(noise(64, 64, 6))
    other = values.copy()
    other[-8:, -8:] = 255 - other[-8:, -8:]
    first, second = (save(Image.fromarray(each), "JPEG", quality=90) for each in (values, other))
    shared = next(at for at, (one, two) in enumerate(zip(first, second, strict=False)) if one != two)
    assert shared > len(first) - 200
    assert decode_image(first, ImageLimits()).image_id != decode_image(second, ImageLimits()).image_id


def test_a_thousand_pictures_share_no_block() -> None:
    """The same prompt with 1,000 random pictures of 8x8: every block that a picture touches is its own."""
    values = np.random.default_rng(0).integers(0, 256, (1000, 8, 8, 3), dtype=np.uint8)
    root, blocks = block_root("model", ("float32", 16), cache_scope("", None)), set()
    for value in values:
        image = decode_image(save(Image.fromarray(value), "BMP"), ImageLimits()).image_id
        fields = {"model_fingerprint": "m", "preprocessing_fingerprint": "p", "dtype": "float32", "scope": "s"}
        chain = BlockChain(root, 16, [KeyedSpan(20, 9, embedding_key(image, **fields))])
        chain.extend([7] * 48)
        blocks |= set(chain.hashes)
    assert len(blocks) == 1 + 2 * 1000
