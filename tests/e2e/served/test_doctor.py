"""`triptych doctor` on a cluster of processes: sound, and with what is wrong about its Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from triptych.cli.app import app
from triptych.cli.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def examine(served: LocalCluster, *options: str) -> tuple[int, list[dict[str, Any]]]:
    where = ["--address", served.grpc_address, "--http", served.http_url.removeprefix("http://")]
    result = CliRunner().invoke(app, ["doctor", *where, "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def test_a_sound_cluster_passes(served: LocalCluster) -> None:
    status, found = examine(served, "--inside")
    assert status == 0, found
    assert {each["check"] for each in found} >= {"ready", "reach", "version", "checkpoint", "clock", "picture"}
    assert any(each["text"] == "answers from here" for each in found)


def test_a_redis_without_limits_is_named(served: LocalCluster) -> None:
    """The embedded one is a child's toy: nothing bounds its memory, and nothing is evicted."""
    status, found = examine(served, "--redis", served.redis_url)
    wrong = [each["text"] for each in found if each["level"] == "fix"]
    assert status == 1 and len(wrong) == 2 and "no maxmemory" in wrong[0] and "refuses uploads" in wrong[1]
