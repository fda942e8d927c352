"""The examples of docs/protocol.md, taken out of the page and run against a cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.cli.cluster import LocalCluster
from triptych.cli.script import FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall(PAGE.read_text())
RUN = {"python": [sys.executable, "-W", "error", "-c"], "sh": ["bash", "-euo", "pipefail", "-c"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the examples find their pictures."""
    for name in ("cat.png", "picture.png"):
        shutil.copy(FOLDER / "sign.png", tmp_path / name)
    return tmp_path


def test_there_is_an_example_of_every_kind() -> None:
    text = "".join(code for _, code in EXAMPLES)
    assert all(word in text for word in ("with Client(", "AsyncClient(", "RouterServiceStub(", "Conversation(", "curl"))


@pytest.mark.parametrize(("language", "code"), EXAMPLES)
def test_example(language: str, code: str, folder: Path, served: LocalCluster) -> None:
    code = code.replace("127.0.0.1:50051", served.grpc_address)
    code = code.replace("localhost:8000", served.http_url.removeprefix("http://"))
    done = subprocess.run([*RUN[language], code], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "print" not in code
    assert '"error"' not in done.stdout
