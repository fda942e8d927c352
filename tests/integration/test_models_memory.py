"""A worker that serves one half has only that half in memory: measured from outside, in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import CheckpointCache

# Every page of what was loaded is touched: weights are mapped from the file and not resident before their first use.
_SCRIPT = """
import sys, pathlib, psutil, torch
from common.models.language import LanguageModel
from common.models.tower import Tower
torch.set_num_threads(1)
process, path, cpu = psutil.Process(), pathlib.Path(sys.argv[1]), torch.device("cpu")
before, loaded = process.memory_info().rss, []
for part in sys.argv[2:]:
    half = {"tower": Tower, "language": LanguageModel}[part].load(path, dtype=torch.float32, device=cpu)
    for parameter in half._module.parameters():
        parameter.sum()
    loaded.append(half)
    print(process.memory_info().rss - before, sum(half.resident_bytes for half in loaded))
"""


def grow(model_dir: Path, *parts: str) -> list[tuple[int, int]]:
    """(growth of resident memory, bytes of the weights) after loading each of `parts`, in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _SCRIPT, str(model_dir), *parts]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    return [(int(grown), int(stated)) for grown, stated in map(str.split, output.splitlines())]


@pytest.mark.parametrize(("part", "other"), [("tower", "language"), ("language", "tower")])
def test_the_other_half_is_not_resident(checkpoints: CheckpointCache, part: str, other: str) -> None:
    model_dir = checkpoints.get("qwen2_5_vl", big=True)
    size = (model_dir / "model.safetensors").stat().st_size
    assert size > 180e6
    (alone, stated), (together, _) = grow(model_dir, part, other)
    assert together > 0.95 * size
    assert stated < 0.65 * size
    # Code and caches that loading drags in are in both figures; half the size is far above their noise.
    assert together - alone > 0.9 * (size - stated)
