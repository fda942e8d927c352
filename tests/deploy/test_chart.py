"""The chart: valid for every supported Kubernetes, nothing unsafe, no drift from the code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import helm_python
import kubernetes_validate
import pytest

from helm.dashboards import FILE, dashboard
from helm.generate import SETTINGS
from helm.generate import render as generated
from tests.deploy.charts import CHART, Manifest, Values, containers, pods, profile, render

PROFILES = ("cpu", "gpu", "e-pd", "ha", "kuberay")
OLDEST, NEWEST = "1.28", "1.36"
# The kinds of other projects have no schema here.
FOREIGN = ("Certificate", "HTTPRoute", "PodMonitor", "RayService", "ScaledObject", "ServiceMonitor", "PrometheusRule")


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


@pytest.mark.parametrize("name", [None, *PROFILES])
def test_lint_finds_nothing(name: str | None) -> None:
    report = helm_python.lint(CHART, profile(name) if name else {}, strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] == [] and report["errors"] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", PROFILES)
def test_objects_are_valid(chart: helm_python.Chart, name: str, version: str) -> None:
    for manifest in render(chart, profile(name)):
        if manifest["kind"] not in FOREIGN:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_generated_files_are_those_of_the_settings() -> None:
    assert {name: (CHART / name).read_text() for name in generated()} == generated()


def test_the_dashboard_is_the_generated_one() -> None:
    assert json.loads(FILE.read_text()) == dashboard()


@pytest.mark.parametrize("name", PROFILES)
def test_probes_are_patient(chart: helm_python.Chart, name: str) -> None:
    """L08: a saturated pod is not a dead one."""
    probes = [
        container[kind]
        for _, container in containers(render(chart, profile(name)))
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        if kind in container
    ]
    assert probes and all(probe["timeoutSeconds"] >= 5 and probe["failureThreshold"] >= 3 for probe in probes)


def test_the_cpu_profile_asks_for_no_gpu(chart: helm_python.Chart) -> None:
    """L16."""
    text = json.dumps(render(chart, profile("cpu")))
    assert "nvidia" not in text and "runtimeClassName" not in text and "tolerations" not in text


@pytest.mark.parametrize("name", PROFILES)
def test_every_container_is_restricted(chart: helm_python.Chart, name: str) -> None:
    for owner, container in containers(render(chart, profile(name))):
        security = container["securityContext"]
        restricted = (
            security["readOnlyRootFilesystem"] and security["runAsNonRoot"] and not security["allowPrivilegeEscalation"]
        )
        assert restricted and security["capabilities"] == {"drop": ["ALL"]}, owner


def test_only_the_router_is_reached_from_outside(chart: helm_python.Chart) -> None:
    """I07: whoever reaches a worker is past the router's checks."""
    policies = {each["metadata"]["name"]: each["spec"] for each in render(chart) if each["kind"] == "NetworkPolicy"}
    inside, router = policies["vlm-triptych-inside"], policies["vlm-triptych-router"]
    assert [list(rule) for rule in inside["ingress"]] == [["from"]]
    assert router["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    assert [port["port"] for rule in router["ingress"] for port in rule["ports"]] == ["http", "grpc"]


def test_a_changed_password_restarts_pods_and_an_equal_one_does_not(chart: helm_python.Chart) -> None:
    sums = [
        [
            pod["metadata"]["annotations"]["checksum/config"]
            for _, pod in pods(render(chart, {"redis": {"password": word}}))
        ]
        for word in ("a", "a", "b")
    ]
    assert sums[0] == sums[1] and not set(sums[0]) & set(sums[2])


def test_missing_things_are_named(chart: helm_python.Chart) -> None:
    with pytest.raises(helm_python.HelmError, match=r"redis\.external\.url or redis\.external\.secret is needed"):
        render(chart, {"redis": {"enabled": False}})


@pytest.mark.parametrize("name", PROFILES)
def test_environments_are_settings_of_the_services(
    chart: helm_python.Chart, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart cannot name a setting that the code does not have, nor give it a value that the code refuses."""
    names = []
    for _, container in containers(render(chart, profile(name))):
        if container["name"] in SETTINGS:
            monkeypatch.setattr(os, "environ", _environment(container))
            names.append(SETTINGS[container["name"]].load([]).served_name)
    assert names and set(names) == {profile(name).get("model", {}).get("name", "triptych-demo")}


@pytest.mark.parametrize("name", PROFILES)
def test_a_drain_ends_before_the_pod_is_killed_and_not_long_before(chart: helm_python.Chart, name: str) -> None:
    """J06: what runs may use up nearly all of the grace that the values give."""
    left = {
        container["name"]: pod["spec"]["terminationGracePeriodSeconds"] - _pre_stop_s(container) - _drain_s(container)
        for _, pod in pods(render(chart, profile(name)))
        for container in pod["spec"]["containers"]
        if container["name"] in SETTINGS
    }
    assert left.keys() >= {"router", "encoder"} and all(5 <= each <= 15 for each in left.values()), left


def _drain_s(container: Manifest) -> float:
    (seconds,) = (each["value"] for each in container["env"] if each["name"].endswith("_DRAIN_GRACE_S"))
    return float(seconds)


def _pre_stop_s(container: Manifest) -> float:
    (*_, seconds) = container.get("lifecycle", {"preStop": {"exec": {"command": [0]}}})["preStop"]["exec"]["command"]
    return float(seconds)


RAY: list[Values] = [{"encoder": {"workers": 2}}, {"encoder": {"kuberay": {"enabled": True}}}]


@pytest.mark.parametrize("values", [{}, *RAY], ids=["own", "joined", "kuberay"])
def test_further_variables_are_in_every_container_of_ours(chart: helm_python.Chart, values: Values) -> None:
    """Ray's TLS, for one, is of no use where a node is without it."""
    manifests = render(chart, {"global": {"env": [{"name": "MORE", "value": "x"}]}, **values})
    without = [each["name"] for _, each in containers(manifests) if {"name": "MORE", "value": "x"} not in each["env"]]
    assert without == ["redis"]


def test_routers_may_stay_old_while_workers_are_new(chart: helm_python.Chart) -> None:
    """A worker answers older routers, and not the other way round."""
    manifests = render(chart, {"global": {"tag": "new"}, "router": {"tag": "old"}})
    tags = {each["name"]: each["image"].rpartition(":")[2] for _, each in containers(manifests)}
    assert [tags[name] for name in ("router", "encoder", "prefill", "decode")] == ["old", "new", "new", "new"]


def test_the_profile_with_traces_lets_them_out() -> None:
    ports = [port["port"] for rule in profile("ha")["networkPolicy"]["egress"] for port in rule["ports"]]
    assert int(profile("ha")["tracing"]["endpoint"].rpartition(":")[2]) in ports


def _environment(container: Manifest) -> dict[str, str]:
    """As the pod would see it, with something for what comes from secrets."""
    given = {each["name"]: each.get("value", "redis://x:6379/0") for each in container["env"]}
    return {key: value.replace("$(POD_IP)", "10.0.0.1") for key, value in given.items()}
