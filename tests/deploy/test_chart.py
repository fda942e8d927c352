"""The chart: valid for every supported Kubernetes, every value used, nothing unsafe, no drift from the code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import helm_python
import kubernetes_validate
import pytest

from helm.dashboards import FILE, dashboard
from helm.generate import SETTINGS
from helm.generate import render as generated
from tests.deploy.charts import (
    CHART,
    Values,
    as_text,
    containers,
    defaults,
    leaves,
    merged,
    pods,
    profile,
    render,
    with_value,
)

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


@pytest.mark.parametrize(
    "path", ["router.replica", "prefill.settings.step_token", "extra", "global.tagg", "redis.external.uri"]
)
def test_unknown_keys_are_refused(chart: helm_python.Chart, path: str) -> None:
    with pytest.raises(helm_python.HelmError, match="additional properties"):
        render(chart, with_value({}, tuple(path.split(".")), "x"))


# What must be on for every value to mean something; two ways, because some exclude each other.
ALL_ON: Values = {
    "redis": {"password": "p", "external": {"url": "redis://elsewhere:6379/0"}},
    "tls": {"enabled": True, "certManager": {"issuer": "ca"}},
    "router": {
        **{block: {"enabled": True} for block in ("ingress", "autoscaling")},
        "gateway": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
        "minAvailable": 1,
        "keys": {"secret": "keys"},
        "ingress": {"enabled": True, "tlsSecret": "tls"},
    },
    **{
        name: {"enabled": True, "gpus": 1, "autoscaling": {"enabled": True}} for name in ("prefill", "decode", "worker")
    },
    "encoder": {"gpus": 1, "workers": 2},
    "serviceAccount": {"name": "account"},
    "priorityClass": {"create": True},
    "tracing": {"endpoint": "http://collector:4317"},
    "networkPolicy": {"egress": [{"ports": [{"port": 4317}]}]},
    "monitoring": {"enabled": True},
}
OTHERWISE: Values = {
    "redis": {"enabled": False, "external": {"url": "redis://elsewhere:6379/0"}},
    "worker": {"enabled": True},
    "encoder": {"workers": 0},
    "serviceAccount": {"create": False, "name": "given"},
}
SECRET_URL: Values = {"redis": {"enabled": False, "external": {"secret": "redis-url"}}}
KUBERAY: Values = {
    "redis": {"enabled": False, "external": {"secret": "redis-url"}},
    "encoder": {
        "kuberay": {
            "enabled": True,
            "maxWorkers": 4,
            "faultTolerance": {"redisAddress": "redis:6379", "secret": "redis", "usernameKey": "username"},
        }
    },
}
SOURCES: list[Values] = [
    {"model": {"source": "imageVolume", "imageVolume": {"reference": "models/demo:1"}}},
    {"model": {"source": "initContainer", "initContainer": {"image": "copier:1"}}},
]
BASES = [merged({"redis": {"password": "p"}}, base) for base in (ALL_ON, OTHERWISE, SECRET_URL, KUBERAY, *SOURCES, {})]
SETTING = {"router": "max_images", "encoder": "threads", "prefill": "threads", "decode": "threads", "worker": "threads"}
EXAMPLES: dict[str, Any] = {
    "labels": {"team": "vision"},
    "podAnnotations": {"note": "x"},
    "annotations": {"note": "x"},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "env": [{"name": "A", "value": "b"}],
    "command": ["cp"],
    "pullSecrets": ["registry"],
    "resources": {"requests": {"cpu": "3"}},
    "headResources": {"requests": {"cpu": "3"}},
    "frontResources": {"requests": {"cpu": "3"}},
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "parentRefs": [{"name": "another"}],
    "hostnames": ["vlm.example.com"],
    "routerFrom": [{"podSelector": {}}],
    "operatorFrom": [{"podSelector": {}}],
    "egress": [{"ports": [{"port": 9}]}],
    "source": "image",
    "kind": "ClusterIssuer",
    "pullPolicy": "Always",
    "logLevel": "DEBUG",
    "type": "LoadBalancer",
}


def other(path: tuple[str, ...], value: Any) -> Any:
    """A value that is not the default, of the same kind."""
    if path[-1] == "settings":
        return {SETTING[path[0]]: 7}
    if path[-1] in EXAMPLES:
        return EXAMPLES[path[-1]]
    if isinstance(value, bool):
        return not value
    return value + 3 if isinstance(value, int | float) else f"{value}x"


@pytest.fixture(scope="module")
def rendered(chart: helm_python.Chart) -> list[str]:
    """What each of BASES gives."""
    return [as_text(chart, base) for base in BASES]


@pytest.mark.parametrize("path", list(leaves(defaults())), ids=".".join)
def test_every_value_changes_something(chart: helm_python.Chart, rendered: list[str], path: tuple[str, ...]) -> None:
    """L14: in at least one configuration in which it is meant to."""
    value: Any = defaults()
    for key in path:
        value = value[key]
    changes = (
        as_text(chart, changed(base, path, other(path, value))) != before
        for base, before in zip(BASES, rendered, strict=True)
    )
    assert any(changes)


def changed(values: Values, path: tuple[str, ...], value: Any) -> Values:
    """One value changed, over whatever the configuration says of it."""
    given: Any = values
    for key in path:
        given = given.get(key, {}) if isinstance(given, dict) else {}
    return with_value(values, path, other(path, given) if isinstance(given, bool) else value)


OPEN = [path for path in leaves(defaults()) if isinstance(EXAMPLES.get(path[-1]), dict | list)]


@pytest.mark.parametrize("base", [ALL_ON, KUBERAY], ids=["all", "kuberay"])
@pytest.mark.parametrize("empty", [None, [], {}], ids=["null", "list", "map"])
def test_open_values_may_be_empty_in_any_way(chart: helm_python.Chart, empty: Any, base: Values) -> None:
    values = base
    for path in OPEN:
        values = with_value(values, path, empty)
    assert len(render(chart, values)) == len(render(chart, base))


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
    for _, pod in pods(render(chart, profile(name))):
        for container in pod["spec"]["containers"]:
            environment = {each["name"]: each.get("value", "") for each in container.get("env", ())}
            graces = [float(value) for key, value in environment.items() if key.endswith("_DRAIN_GRACE_S")]
            left = [pod["spec"]["terminationGracePeriodSeconds"] - _pre_stop_s(container) - grace for grace in graces]
            assert all(5 <= each <= 15 for each in left), container["name"]


def _pre_stop_s(container: dict[str, Any]) -> float:
    (*_, seconds) = container.get("lifecycle", {"preStop": {"exec": {"command": [0]}}})["preStop"]["exec"]["command"]
    return float(seconds)


def _environment(container: dict[str, Any]) -> dict[str, str]:
    """As the pod would see it, with something for what comes from secrets."""
    given = {each["name"]: each.get("value", "redis://x:6379/0") for each in container["env"]}
    return {key: value.replace("$(POD_IP)", "10.0.0.1") for key, value in given.items()}
