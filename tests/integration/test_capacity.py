"""Capacity of real checkpoints: shapes from configs against modules, formulas against measurements, and the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.capacity_tables import SHAPES
from common.capacity.checkpoint import checkpoint_shape, meta_parameters
from common.capacity.report import Question, make_plan
from common.capacity.weights import language_parameters, vision_parameters
from tests.checkpoints import FAMILIES, CheckpointCache
from triptych.cli import main
from triptych.cli.app import app
from triptych.errors import CheckpointError

TOLERANCE = 0.2
"""How far a formula may be from the measured peak, as docs/capacity.md states."""
STEPS = ("--step-tokens", "512", "--sequences", "8", "--context", "512", "--encoder-tokens", "200")
runner = CliRunner()


def run(arguments: Sequence[str]) -> str:
    result = runner.invoke(app, ["capacity", *arguments])
    assert result.exit_code == 0, result.exception
    return result.stdout


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_counts_every_parameter(family: str, tie: bool, checkpoints: CheckpointCache) -> None:
    directory = checkpoints.get(family, tie=tie)
    shape = checkpoint_shape(directory)
    assert (vision_parameters(shape.vision), language_parameters(shape.language)) == meta_parameters(directory)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_without_weights_is_enough(family: str, checkpoints: CheckpointCache, tmp_path: Path) -> None:
    shutil.copy(checkpoints.get(family) / "config.json", tmp_path)
    plan = make_plan(Question(model=tmp_path))
    assert {stage.weights.source for stage in plan.stages} == {"config"}
    assert plan.stages[0].blocks


def test_a_model_that_is_not_there_cannot_be_measured(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        shutil.copy(checkpoints.get("llava") / name, tmp_path)
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        make_plan(Question(model=tmp_path, measure="always"))


def test_an_unknown_family_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(CheckpointError, match="'bert'; the supported types are"):
        make_plan(Question(model=tmp_path))


@pytest.fixture(scope="module")
def measured(checkpoints: CheckpointCache) -> dict[str, Any]:
    directory = checkpoints.get("qwen2_5_vl", big=True, max_image_tokens=96)
    figures: dict[str, Any] = json.loads(
        run(["--model", str(directory), "--dtype", "float32", "--measure", "--json", *STEPS])
    )
    return figures


@pytest.mark.parametrize("role", ["encode", "prefill", "decode", "prefill+decode"])
def test_the_formula_is_near_the_measured_peak(role: str, measured: dict[str, Any]) -> None:
    peak = next(stage["peak"] for stage in measured["stages"] if stage["stage"] == role)
    assert peak["source"] == "measured"
    assert measured["formula"]["peaks"][role]["bytes"] == pytest.approx(peak["bytes"], rel=TOLERANCE)


def test_measured_weights_are_the_parameters_and_a_few_buffers(measured: dict[str, Any]) -> None:
    weights = measured["stages"][0]["weights"]
    expected = measured["formula"]["tower"]["bytes"] + measured["formula"]["language"]["bytes"]
    assert weights["source"] == "measured"
    assert expected <= weights["bytes"] < expected + 10_000


def test_the_table_has_a_row_for_every_device() -> None:
    lines = run(["--shape", str(SHAPES / "internvl2-26b-like.json")]).splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert [tuple(row[:2]) for row in rows] == [
        ("monolithic", "encode+prefill+decode"),
        ("E/PD", "encode"),
        ("E/PD", "prefill+decode"),
        ("E/P/D", "encode"),
        ("E/P/D", "prefill"),
        ("E/P/D", "decode"),
    ]
    assert rows[2][2:] == ["36.99 GiB c", "0.31 GiB c", "11,842", "189,472", "1.47"]


def test_too_small_a_device_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = str(SHAPES / "internvl2-26b-like.json")
    monkeypatch.setattr("sys.argv", ["triptych", "capacity", "--shape", shape, "--device-memory", "24GiB"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("error: a budget of 23192823398 bytes leaves no room for KV")
