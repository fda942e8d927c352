"""The committed stubs are what the contract generates, and the contract passes its linter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    kinds = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *kinds, *map(str, PROTOS)]
    subprocess.run(command, check=True, env=ENVIRONMENT)
    return out


def contents(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / "triptych" / "v1").glob("*_pb2*.py*")}


def test_committed_stubs_are_up_to_date(generated: Path) -> None:
    fresh, committed = contents(generated), contents(ROOT)
    assert fresh.keys() == committed.keys()
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert stale == [], "run `make proto`"


def test_the_contract_passes_its_linter() -> None:
    done = subprocess.run([BIN / "buf", "lint"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_protos_lie_where_their_package_says() -> None:
    for path in PROTOS:
        package = ".".join(path.parent.relative_to(ROOT / "proto").parts)
        assert f"\npackage {package};\n" in path.read_text(), path
