"""Fingerprints change with everything their half computes with, and with nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from common.families.checkpoint import config_fingerprint
from common.models.fingerprint import model_fingerprint
from common.models.weights import Stage
from tests.checkpoints import CheckpointCache, build_checkpoint
from triptych.errors import CheckpointError

OWN = {Stage.TOWER: "model.visual.patch_embed.proj.weight", Stage.LANGUAGE: "lm_head.weight"}


def with_changed_weight(model_dir: Path, target: Path, name: str) -> Path:
    shutil.copytree(model_dir, target)
    tensors = load_file(target / "model.safetensors")
    tensors[name].view(-1)[-1] += 1
    save_file(tensors, target / "model.safetensors")
    return target


def with_changed_config(model_dir: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(model_dir, target)
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config, indent=7))
    return target


@pytest.mark.parametrize("stage", Stage)
def test_is_a_full_digest_and_repeats(checkpoints: CheckpointCache, tmp_path: Path, stage: Stage) -> None:
    first = model_fingerprint(checkpoints.get("qwen2_vl"), stage)
    assert len(bytes.fromhex(first)) == 32
    assert first == model_fingerprint(build_checkpoint("qwen2_vl", tmp_path / "again"), stage)


def test_halves_and_seeds_differ(checkpoints: CheckpointCache) -> None:
    directories = [checkpoints.get("qwen2_vl"), checkpoints.get("qwen2_vl", seed=1)]
    assert len({model_fingerprint(directory, stage) for directory in directories for stage in Stage}) == 4


@pytest.mark.parametrize("stage", Stage)
def test_one_weight_changes_its_half_only(checkpoints: CheckpointCache, tmp_path: Path, stage: Stage) -> None:
    model_dir = checkpoints.get("qwen2_vl")
    changed = with_changed_weight(model_dir, tmp_path / "changed", OWN[stage])
    for half in Stage:
        same = model_fingerprint(changed, half) == model_fingerprint(model_dir, half)
        assert same is (half is not stage)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("form", ["shards", "old_names"])
def test_the_form_of_the_files_does_not_matter(checkpoints: CheckpointCache, stage: Stage, form: str) -> None:
    other = checkpoints.get("llava", **{form: True})
    assert model_fingerprint(other, stage) == model_fingerprint(checkpoints.get("llava"), stage)


@pytest.mark.parametrize("stage", Stage)
def test_the_config_counts_but_not_who_wrote_it(checkpoints: CheckpointCache, tmp_path: Path, stage: Stage) -> None:
    model_dir = checkpoints.get("qwen3_vl")
    renamed = with_changed_config(model_dir, tmp_path / "a", lambda config: config.update(transformers_version="0"))
    changed = with_changed_config(model_dir, tmp_path / "b", lambda config: config.update(image_token_id=9))
    assert model_fingerprint(renamed, stage) == model_fingerprint(model_dir, stage)
    assert model_fingerprint(changed, stage) != model_fingerprint(model_dir, stage)


def test_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        model_fingerprint(tmp_path, Stage.TOWER)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        model_fingerprint(tmp_path, Stage.TOWER)


def test_imports_no_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; import common.models.fingerprint"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(("name", "same"), [("transformers_version", True), ("vision_start_token_id", False)])
def test_configs_are_told_apart_by_what_is_computed(
    checkpoints: CheckpointCache, tmp_path: Path, name: str, same: bool
) -> None:
    model_dir = checkpoints.get("qwen2_vl")
    changed = with_changed_config(model_dir, tmp_path / "changed", lambda config: config.update({name: 7}))
    assert (config_fingerprint(changed) == config_fingerprint(model_dir)) is same
