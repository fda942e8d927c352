"""The list of an image's packages, made of this environment by the command that the recipe runs on each image."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Dockerfile").read_text()
IMAGES = {"router", "encoder", "worker"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if version}


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In an environment of its own: with what it brings along, `import ray` takes four times as long."""
    place = tmp_path_factory.mktemp("tool")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "-c", str(ROOT / "requirements.lock"), "cyclonedx-bom"], check=True)
    return place / "bin" / "cyclonedx-py"


@pytest.fixture(scope="module")
def listed(tool: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Version by name; a local part, as in 2.13.0+cpu, is not pinned."""
    file = tmp_path_factory.mktemp("sbom") / "router.cdx.json"
    found = re.search(r"cyclonedx-py (.+?) \\\n\s+-o", RECIPE)
    assert found is not None
    command = [str(tool), *shlex.split(found[1]), "-o", str(file), sys.executable]
    subprocess.run(command, capture_output=True, check=True)
    components = json.loads(file.read_text())["components"]
    return {canonical(each["name"]): each["version"].partition("+")[0] for each in components}


@pytest.mark.deploy
@pytest.mark.timeout(300)
def test_every_installed_package_is_listed_with_its_pinned_version(listed: dict[str, str]) -> None:
    installed = {canonical(each.name) for each in distributions()}
    assert {name: version for name, version in pinned().items() if name in installed}.items() - listed.items() == set()


def test_every_image_is_listed() -> None:
    (images,) = re.findall(r"for image in (.+?);", RECIPE)
    assert set(images.split()) == IMAGES == set(re.findall(r"from=(\w+),source=/opt/triptych", RECIPE))
