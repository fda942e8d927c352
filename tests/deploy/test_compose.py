"""The compose file and the images' recipe, as far as they can be checked without a container engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.generate import SETTINGS

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
FILES = [["docker-compose.yml"], ["docker-compose.yml", "docker-compose.gpu.yml"]]
KINDS = {"encoder": "encoder", "prefill": "prefill", "decode": "decode", "router": "router"}


def compose(files: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`docker compose` of these files; `config` needs no engine."""
    named = [word for file in files for word in ("-f", file)]
    command = [str(BIN / "docker-compose"), *named, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def config(files: list[str]) -> dict[str, Any]:
    done = compose(files, "--profile", "monitoring", "config")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


@pytest.mark.parametrize("files", FILES, ids=["cpu", "gpu"])
def test_the_files_are_valid(files: list[str]) -> None:
    done = compose(files, "config", "-q")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("files", FILES, ids=["cpu", "gpu"])
def test_environments_are_settings_of_the_services(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    services = config(files)["services"]
    for name, settings in ((each, SETTINGS[kind]) for each, kind in KINDS.items()):
        given = {key: str(value) for key, value in services[name]["environment"].items()}
        prefix = given.pop("PREFIX")
        monkeypatch.setattr(os, "environ", given | exported(services[name], prefix))
        assert settings.load([]).served_name == "triptych-demo"


def exported(service: dict[str, Any], prefix: str) -> dict[str, str]:
    """What the entry point adds, with an address and a password in place of its commands."""
    script = re.sub(r"\$\$\(hostname[^)]*\)", "10.0.0.2", service["entrypoint"][2])
    script = re.sub(r"\$\$\(cat[^)]*\)", "x", script)
    return {f"{prefix}{name}": value for name, value in re.findall(r'"\$\$\{PREFIX\}(\w+)=([^"]*)"', script)}


def test_a_drain_ends_before_the_container_is_killed_and_not_long_before() -> None:
    services = config(FILES[0])["services"]
    for name in KINDS:
        drain_s = exported(services[name], "")["_DRAIN_GRACE_S"]
        assert (drain_s, services[name]["stop_grace_period"]) == ("110", "2m0s"), name


def test_only_the_router_is_published_and_only_locally() -> None:
    services = config(FILES[0])["services"]
    published = {name: service.get("ports", []) for name, service in services.items()}
    assert {name for name, ports in published.items() if ports} == {"router", "prometheus"}
    assert {port["host_ip"] for ports in published.values() for port in ports} == {"127.0.0.1"}


def test_every_service_is_confined() -> None:
    for name, service in config(FILES[0])["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_workers_register_the_address_of_their_container() -> None:
    """They listen on every interface, and 0.0.0.0 would lead whoever reads the registry to itself."""
    services = config(FILES[0])["services"]
    assert all("_ADVERTISE=$" in " ".join(services[name]["entrypoint"]) for name in ("encoder", "prefill", "decode"))


def test_workers_wait_for_redis_and_the_router_for_all() -> None:
    services = config(FILES[0])["services"]
    waits = {name: set(services[name]["depends_on"]) for name in KINDS}
    assert waits["router"] == {"redis", "encoder", "prefill", "decode"}
    assert all(waits[name] == {"redis"} for name in ("encoder", "prefill", "decode"))


def test_the_example_lists_what_the_file_reads() -> None:
    asked = set(re.findall(r"\$\{(TRIPTYCH_\w+)", (ROOT / "docker-compose.yml").read_text()))
    listed = set(re.findall(r"^#(TRIPTYCH_\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked - listed <= {"TRIPTYCH_REDIS_IMAGE", "TRIPTYCH_PROMETHEUS_IMAGE"} and listed <= asked


def test_the_recipe_of_the_images_is_clean() -> None:
    done = subprocess.run([BIN / "hadolint", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_images_hold_what_the_package_needs() -> None:
    """What the recipe copies is what .dockerignore lets in, and all packages are among it."""
    copied = set(re.findall(r"COPY (?!--from)(.+) \./", (ROOT / "Dockerfile").read_text()))
    names = {word.split("/")[0] for line in copied for word in line.split()}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert names == let_in and {"triptych", "common", "services"} <= names
