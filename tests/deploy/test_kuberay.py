"""The encoder as a RayService: what the operator accepts, where each part may run, and who reaches what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.charts import CHART, Manifest, Values, merged, profile, ray_pods, render, with_value
from tests.deploy.test_chart import NEWEST, OLDEST

SCHEMA = json.loads((Path(__file__).parent / "rayservice.schema.json").read_text())
PINNED = (CHART.parents[1] / "requirements.lock").read_text()
# One pod for the tower, which stays one; the built-in Redis keeps the state.
SMALL: Values = {"encoder": {"kuberay": {"enabled": True}}}


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def service(chart: helm_python.Chart, values: Values) -> Manifest:
    (found,) = (each for each in render(chart, values) if each["kind"] == "RayService")
    return found


def cluster(chart: helm_python.Chart, values: Values) -> Any:
    return service(chart, values)["spec"]["rayClusterConfig"]


def groups(chart: helm_python.Chart, values: Values) -> dict[str, Any]:
    return {group["groupName"]: group for group in cluster(chart, values)["workerGroupSpecs"]}


@pytest.mark.parametrize(
    "values",
    [SMALL, profile("kuberay"), with_value(SMALL, ("fullnameOverride",), "x" * 60)],
    ids=["small", "gpu", "long"],
)
def test_the_operator_accepts_it(chart: helm_python.Chart, values: Values) -> None:
    jsonschema.validate(service(chart, values), SCHEMA)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_its_pods_are_valid(chart: helm_python.Chart, version: str) -> None:
    for name, template in ray_pods(service(chart, profile("kuberay"))):
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}
        kubernetes_validate.validate(pod, version, strict=True)


def test_the_front_fits_into_its_pod_and_nowhere_else(chart: helm_python.Chart) -> None:
    (application,) = yaml.safe_load(service(chart, SMALL)["spec"]["serveConfigV2"])["applications"]
    (front,) = application["deployments"]
    found = {name: group["rayStartParams"].get("resources") for name, group in groups(chart, SMALL).items()}
    assert found == {"front": f"'{json.dumps(front['ray_actor_options']['resources'])}'", "towers": None}


def test_the_version_is_that_of_the_image(chart: helm_python.Chart) -> None:
    assert f"ray=={cluster(chart, SMALL)['rayVersion']}\n" in PINNED


def test_front_and_towers_are_apart_and_the_head_runs_neither(chart: helm_python.Chart) -> None:
    found = groups(chart, profile("kuberay"))
    cpus = {name: group["rayStartParams"]["num-cpus"] for name, group in found.items()}
    assert cpus == {"front": "0", "towers": "1"}
    assert cluster(chart, profile("kuberay"))["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_gpus_and_their_nodes_are_for_the_towers(chart: helm_python.Chart) -> None:
    pods = dict(ray_pods(service(chart, profile("kuberay"))))
    asking = [name for name, pod in pods.items() if "nvidia.com/gpu" in json.dumps(pod)]
    assert asking == ["towers"] and pods["towers"]["spec"]["nodeSelector"] == {"accelerator": "l4"}


def test_towers_grow_only_where_there_may_be_more(chart: helm_python.Chart) -> None:
    bounds = [
        (group["minReplicas"], group["maxReplicas"])
        for group in (groups(chart, values)["towers"] for values in (SMALL, profile("kuberay")))
    ]
    scales = [cluster(chart, values).get("enableInTreeAutoscaling", False) for values in (SMALL, profile("kuberay"))]
    assert (bounds, scales) == ([(1, 1), (2, 4)], [False, True])


def test_only_an_autoscaler_has_an_account(chart: helm_python.Chart) -> None:
    """It is the operator's, with rights for this cluster alone."""
    mounted = {
        name: pod["spec"].get("automountServiceAccountToken", True)
        for name, pod in ray_pods(service(chart, profile("kuberay")))
    }
    assert mounted == {"head": True, "front": False, "towers": False}
    assert not dict(ray_pods(service(chart, SMALL)))["head"]["spec"]["automountServiceAccountToken"]


def test_the_state_is_in_the_built_in_redis(chart: helm_python.Chart) -> None:
    state = cluster(chart, SMALL)["gcsFaultToleranceOptions"]
    secret = {"valueFrom": {"secretKeyRef": {"name": "vlm-triptych-redis", "key": "password"}}}
    assert state == {"redisAddress": "vlm-triptych-redis:6379", "redisPassword": secret}


def test_the_state_may_be_elsewhere_or_nowhere(chart: helm_python.Chart) -> None:
    tolerance = ("encoder", "kuberay", "faultTolerance", "enabled")
    assert "gcsFaultToleranceOptions" not in cluster(chart, with_value(SMALL, tolerance, False))
    with pytest.raises(helm_python.HelmError, match=r"faultTolerance\.redisAddress is needed"):
        render(chart, merged(SMALL, {"redis": {"enabled": False, "external": {"url": "redis://elsewhere:6379/0"}}}))


def test_the_operator_alone_reaches_the_dashboard(chart: helm_python.Chart) -> None:
    policies = {
        each["metadata"]["name"]: each["spec"] for each in render(chart, SMALL) if each["kind"] == "NetworkPolicy"
    }
    head = policies["vlm-triptych-encoder-head"]
    assert head["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "encoder-head"
    (rule,) = head["ingress"]
    assert rule["ports"] == [{"port": "dashboard"}]
    assert rule["from"][0]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}


@pytest.mark.parametrize("is_open", [False, True], ids=["listed", "open"])
def test_the_autoscaler_reaches_the_api_and_nothing_is_closed_by_that(chart: helm_python.Chart, is_open: bool) -> None:
    """A policy with egress, once it is there, closes all that none names."""
    values = merged(profile("kuberay"), {"networkPolicy": {"egressOpen": is_open}})
    policies = [each["spec"] for each in render(chart, values) if each["kind"] == "NetworkPolicy"]
    limiting = [spec for spec in policies if "Egress" in spec["policyTypes"]]
    assert len(limiting) == (0 if is_open else 2) and [spec for spec in policies if "egress" in spec] == limiting


def test_ray_lets_the_front_drain_for_as_long_as_the_pod_may(chart: helm_python.Chart) -> None:
    """Its own patience is 30 s."""
    found = dict(ray_pods(service(chart, SMALL)))
    waits = {
        name: each["value"]
        for name, pod in found.items()
        for each in pod["spec"]["containers"][0]["env"]
        if each["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    }
    assert waits == {"front": "80", "towers": "80"}
    assert found["front"]["spec"]["terminationGracePeriodSeconds"] == 90


def test_nothing_of_the_stand_alone_encoder_is_left(chart: helm_python.Chart) -> None:
    kinds = [each["kind"] for each in render(chart, SMALL) if re.search("encoder", each["metadata"]["name"])]
    assert sorted(kinds) == ["NetworkPolicy", "RayService", "Service"]
