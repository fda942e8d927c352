"""What went wrong elsewhere, and does not in the rendered chart; names are those of the cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from tests.deploy.charts import CHART, Manifest, Values, containers, pods, profile, render

MIB = 2**20
KUBERAY: Values = {"encoder": {"kuberay": {"enabled": True}}}


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def component(manifest: Manifest) -> str:
    label: str = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
    return label


@pytest.mark.parametrize("name", ["cpu", "e-pd", "kuberay"])
def test_j05_workers_are_found_one_by_one(chart: helm_python.Chart, name: str) -> None:
    """A ClusterIP would pin every channel to one pod, and hide new ones."""
    services = {component(each): each["spec"] for each in render(chart, profile(name)) if each["kind"] == "Service"}
    headless = {name for name, spec in services.items() if spec.get("clusterIP") == "None"}
    assert headless == set(services) - {"router", "redis"}


def test_j06_a_router_leaves_its_service_before_it_stops_answering(chart: helm_python.Chart) -> None:
    (router,) = (each for _, each in containers(render(chart)) if each["name"] == "router")
    assert router["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    assert router["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_k09_a_version_that_never_gets_ready_replaces_nobody(chart: helm_python.Chart) -> None:
    manifests = render(chart, {"encoder": {"workers": 2}})
    found = [each for each in manifests if each["kind"] == "Deployment" and component(each) != "redis"]
    assert found and all(each["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0 for each in found)
    probed = {container["name"] for _, container in containers(found) if "readinessProbe" in container}
    assert probed == {"encoder", "prefill", "decode", "router"}


@pytest.mark.parametrize("values", [{}, {"encoder": {"workers": 2}}, KUBERAY], ids=["own", "joined", "kuberay"])
def test_k10_rays_object_store_fits_into_shared_memory(chart: helm_python.Chart, values: Values) -> None:
    found = [pod for _, pod in pods(render(chart, values)) if component(pod).startswith("encoder")]
    assert found and all(shared_memory_bytes(pod) >= 2 * 80 * MIB for pod in found)


def shared_memory_bytes(pod: Manifest) -> int:
    (volume,) = (each["emptyDir"] for each in pod["spec"]["volumes"] if each["name"] == "shm")
    assert volume["medium"] == "Memory"
    return int(str(volume["sizeLimit"]).removesuffix("Mi")) * MIB


@pytest.mark.parametrize("values", [{"encoder": {"workers": 2}}, KUBERAY], ids=["joined", "kuberay"])
def test_every_pod_of_ray_that_has_the_tower_has_the_checkpoint(chart: helm_python.Chart, values: Values) -> None:
    """Those that copy it at their start, too."""
    copied: Values = {"model": {"source": "initContainer", "initContainer": {"image": "copier:1"}}}
    (tower,) = (pod for _, pod in pods(render(chart, values | copied)) if component(pod) == "encoder-ray")
    mounts: list[Any] = [container["volumeMounts"] for container in tower["spec"]["initContainers"]]
    assert "/models/triptych-demo" in [mount["mountPath"] for mount in mounts[0]]


@pytest.mark.parametrize("values", [{"workers": 2}, {"kuberay": {"enabled": True}}], ids=["joined", "kuberay"])
def test_a_disruption_leaves_towers_and_may_move_the_one_front(chart: helm_python.Chart, values: Values) -> None:
    """A budget of one for a pod that is one alone would keep its node from ever being drained."""
    (budget,) = (
        each["spec"]
        for each in render(chart, {"encoder": {**values, "minAvailable": 1}})
        if each["kind"] == "PodDisruptionBudget"
    )
    assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == "encoder-ray"


def test_nodes_of_ray_ask_for_the_token_that_they_are_given(chart: helm_python.Chart) -> None:
    """Without the mode only a head does, and no worker could join it."""
    found = [each for _, each in containers(render(chart, {"encoder": {"workers": 2}})) if "ray" in str(each["env"])]
    names = [{each["name"] for each in container["env"]} for container in found]
    assert len(names) == 3 and all({"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= each for each in names)


def test_g14_the_built_in_redis_evicts_only_what_has_an_expiry(chart: helm_python.Chart) -> None:
    (redis,) = (each for _, each in containers(render(chart)) if each["name"] == "redis")
    policy = redis["args"][redis["args"].index("--maxmemory-policy") + 1]
    assert policy == "volatile-lru"
