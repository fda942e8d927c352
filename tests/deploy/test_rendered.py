"""What the chart tells Kubernetes to run, run here: its commands, environments, ports and probes fit the code."""

from __future__ import annotations

import time
from collections.abc import Iterator

import helm_python
import pytest

from tests.deploy.charts import CHART, containers, profile, render
from tests.deploy.pods import HOST, ROOT, LocalPod, Place, local_pods
from tests.valkey import start_valkey
from triptych import Client

pytestmark = [pytest.mark.cluster, pytest.mark.deploy, pytest.mark.timeout(300)]
SERVICES = ("encoder", "prefill", "decode", "router")
PATIENCE_S = 150.0


@pytest.fixture(scope="module")
def pods() -> Iterator[dict[str, LocalPod]]:
    with helm_python.Chart.load(CHART) as chart:
        manifests = render(chart, profile("cpu"))
    found = [container for _, container in containers(manifests) if container["name"] in SERVICES]
    with start_valkey() as redis, local_pods(found, Place(redis, ROOT / "models" / "triptych-demo")) as started:
        yield started


def wait_for(pod: LocalPod, probe: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not pod.passes(probe):
        assert pod.runs() and time.monotonic() < deadline, pod.last_words()
        time.sleep(0.5)


def test_every_service_is_started(pods: dict[str, LocalPod]) -> None:
    assert sorted(pods) == sorted(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_its_probes_pass_in_the_end(pods: dict[str, LocalPod], probe: str, name: str) -> None:
    """L10."""
    wait_for(pods[name], probe)


@pytest.mark.parametrize("name", SERVICES)
def test_metrics_are_where_the_monitors_look(pods: dict[str, LocalPod], name: str) -> None:
    assert pods[name].serves_metrics()


def test_answers_at_the_port_of_the_manifest(pods: dict[str, LocalPod]) -> None:
    with Client(f"{HOST}:{pods['router'].ports['50051']}") as client:
        answer = client.generate("Who are you?", temperature=0.0).answer()
    assert answer.text.strip() == "I am the Triptych demo model."


def test_a_terminated_pod_fails_its_probes_and_ends_well(pods: dict[str, LocalPod]) -> None:
    assert pods["decode"].terminate() == 0
    assert not pods["decode"].passes("readinessProbe") and not pods["decode"].passes("livenessProbe")
