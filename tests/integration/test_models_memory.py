"""A worker that serves one half has only that half in memory: measured from outside, in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.checkpoints import CheckpointCache, session_checkpoints

# Every page of what was loaded is touched: weights are mapped from the file and not resident before their first use.
_SCRIPT = """
import sys, pathlib, psutil, torch
from common.models.language import LanguageModel
from common.models.tower import Tower
torch.set_num_threads(1)
process, path, cpu = psutil.Process(), pathlib.Path(sys.argv[2]), torch.device("cpu")
before = process.memory_info().rss
loaded = []
if sys.argv[1] in ("tower", "both"):
    loaded.append(Tower.load(path, torch.float32, cpu))
if sys.argv[1] in ("language", "both"):
    loaded.append(LanguageModel.load(path, dtype=torch.float32, device=cpu))
for half in loaded:
    for parameter in half._module.parameters():
        parameter.sum()
print(process.memory_info().rss - before, sum(half.resident_bytes for half in loaded))
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCache:
    return session_checkpoints(tmp_path_factory)


@cache
def measure(part: str, model_dir: Path) -> tuple[int, int]:
    """(growth of resident memory, bytes of the weights) after loading `part` in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _SCRIPT, part, str(model_dir)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    grown, stated = map(int, output.split())
    return grown, stated


@pytest.mark.parametrize("part", ["tower", "language"])
def test_the_other_half_is_not_resident(checkpoints: CheckpointCache, part: str) -> None:
    model_dir = checkpoints.get("qwen2_5_vl", big=True)
    size = (model_dir / "model.safetensors").stat().st_size
    assert size > 180e6
    everything, _ = measure("both", model_dir)
    grown, stated = measure(part, model_dir)
    assert everything > 0.95 * size
    assert stated < 0.65 * size
    # Code and caches that loading drags in are in both figures; half the size is far above their noise.
    assert everything - grown > 0.9 * (size - stated)
