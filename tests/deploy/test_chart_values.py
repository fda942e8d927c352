"""The chart's values: each one changes something, unknown ones are refused, and open ones may be empty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from tests.deploy.charts import CHART, Values, as_text, defaults, leaves, merged, render, with_value


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


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
    return value + 5 if isinstance(value, int | float) else f"{value}x"


@pytest.fixture(scope="module")
def rendered(chart: helm_python.Chart) -> list[str]:
    """What each of BASES gives."""
    return [without_sums(chart, base) for base in BASES]


def without_sums(chart: helm_python.Chart, values: Values) -> str:
    """Without those of the values, which change with every one of them, used or not."""
    return re.sub(r"checksum/config: .*", "", as_text(chart, values))


@pytest.mark.parametrize("path", list(leaves(defaults())), ids=".".join)
def test_every_value_changes_something(chart: helm_python.Chart, rendered: list[str], path: tuple[str, ...]) -> None:
    """L14: in at least one configuration in which it is meant to."""
    value: Any = defaults()
    for key in path:
        value = value[key]
    changes = (
        without_sums(chart, changed(base, path, other(path, value))) != before
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
