"""What scales on Kubernetes, by which series, and how slowly it shrinks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from tests.deploy.charts import CHART, Manifest, defaults, render

WORKERS = ("prefill", "decode", "worker")
OPERATIONS = (CHART.parents[1] / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def autoscaler(chart: helm_python.Chart, component: str, **values: Any) -> Manifest:
    """The one of a component that is on, with these values."""
    manifests = render(chart, {component: {"enabled": True, "autoscaling": {"enabled": True, **values}}})
    kinds = ("HorizontalPodAutoscaler", "ScaledObject")
    (found,) = (each for each in manifests if each["kind"] in kinds)
    return found


@pytest.mark.parametrize("component", WORKERS)
def test_the_series_is_documented(component: str) -> None:
    scaling = defaults()[component]["autoscaling"]
    (label,) = scaling["labels"]
    assert re.search(rf"`{scaling['metric'].removeprefix('triptych_')}\{{{label}\}}`", OPERATIONS)


@pytest.mark.parametrize("component", WORKERS)
def test_keda_asks_for_the_series_of_this_component_alone(chart: helm_python.Chart, component: str) -> None:
    spec = autoscaler(chart, component, prometheus="http://prometheus:9090")["spec"]
    (trigger,) = spec["triggers"]
    assert f'pod=~"vlm-triptych-{component}-.+"' in trigger["metadata"]["query"]
    assert 'namespace="serving"' in trigger["metadata"]["query"]


@pytest.mark.parametrize("component", WORKERS)
def test_both_ways_have_one_target_and_shrink_slowly(chart: helm_python.Chart, component: str) -> None:
    own = autoscaler(chart, component)["spec"]
    keda = autoscaler(chart, component, prometheus="http://prometheus:9090")["spec"]
    assert own["metrics"][0]["pods"]["target"]["averageValue"] == keda["triggers"][0]["metadata"]["threshold"]
    behaviour = keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert own["behavior"] == behaviour and behaviour["scaleDown"]["stabilizationWindowSeconds"] == 300


@pytest.mark.parametrize("component", WORKERS)
def test_a_deployment_that_is_scaled_says_no_number_of_pods(chart: helm_python.Chart, component: str) -> None:
    manifests = render(chart, {component: {"enabled": True, "autoscaling": {"enabled": True}}})
    (deployment,) = (
        each for each in manifests if each["kind"] == "Deployment" and each["metadata"]["name"].endswith(component)
    )
    assert "replicas" not in deployment["spec"]
