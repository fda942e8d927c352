"""What a local cluster consists of, decided without starting anything."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from triptych.cli.plan import ClusterOptions, Kind, Part, default_model, plan_cluster
from triptych.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def plan(options: ClusterOptions, cores: int = 2) -> dict[str, Part]:
    ports = itertools.count(1000)
    return {part.name: part for part in plan_cluster(options, lambda: next(ports), cores, Path("/data"))}


def flag(part: Part, name: str) -> str:
    return part.command[part.command.index(name) + 1]


def test_default_cluster_has_one_of_each(model: Path) -> None:
    assert list(plan(ClusterOptions(model))) == ["valkey", "prefill", "decode", "encoder", "router"]


def test_every_port_is_another(model: Path) -> None:
    parts = plan(ClusterOptions(model, prefill=2, decode=3)).values()
    ports = [port for part in parts for port in (part.port, *part.also_listens)]
    assert len(set(ports)) == len(ports) == 9


def test_several_of_a_kind_are_numbered(model: Path) -> None:
    assert {"prefill-1", "prefill-2", "decode"} <= plan(ClusterOptions(model, prefill=2)).keys()


def test_all_parts_share_the_embedded_valkey(model: Path) -> None:
    parts = plan(ClusterOptions(model))
    urls = {flag(part, "--redis-url") for part in parts.values() if part.kind != "valkey"}
    assert urls == {f"redis://{parts['valkey'].address}/0"}


def test_a_given_redis_replaces_the_embedded_one(model: Path) -> None:
    parts = plan(ClusterOptions(model, redis="redis://there:1/0"))
    assert "valkey" not in parts and flag(parts["router"], "--redis-url") == "redis://there:1/0"


def test_what_ray_writes_goes_with_the_cluster(model: Path) -> None:
    """A killed encoder removes nothing."""
    assert flag(plan(ClusterOptions(model))["encoder"], "--ray-directory") == "/data"


def test_encoder_replicas_are_one_process(model: Path) -> None:
    assert flag(plan(ClusterOptions(model, encoders=3))["encoder"], "--replicas") == "3"


@pytest.mark.parametrize(("cores", "expected"), [(2, "1"), (6, "2"), (16, "5")])
def test_threads_are_shared_out_over_the_workers(model: Path, cores: int, expected: str) -> None:
    decode = plan(ClusterOptions(model), cores)["decode"]
    assert flag(decode, "--threads") == decode.environment["OMP_NUM_THREADS"] == expected


def test_given_ports_are_the_routers(model: Path) -> None:
    router = plan(ClusterOptions(model, grpc_port=50051, http_port=8000))["router"]
    assert (router.address, router.also_listens) == ("127.0.0.1:50051", (8000,))


def test_extra_flags_reach_their_kind_only(model: Path) -> None:
    extra: dict[Kind, list[str]] = {"decode": ["--blocks", "64"]}
    parts = plan(ClusterOptions(model, extra=extra))
    assert flag(parts["decode"], "--blocks") == "64" and "--blocks" not in parts["prefill"].command


def test_a_cluster_without_a_stage_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        plan(ClusterOptions(model, decode=0))


def test_a_directory_without_a_model_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        plan(replace(ClusterOptions(model), model=model / "none"))


def test_the_environment_names_the_default_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_MODEL", str(model))
    assert default_model() == model


def test_a_wrong_default_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_MODEL", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="--model"):
        default_model()
