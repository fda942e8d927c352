"""The chart as tests see it: values in, objects out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[2] / "helm" / "triptych"
Values = dict[str, Any]
Manifest = dict[str, Any]


def defaults() -> Values:
    """The chart's own values."""
    values: Values = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def profile(name: str) -> Values:
    """Values of one of the chart's profiles."""
    values: Values = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def render(chart: helm_python.Chart, values: Values | None = None) -> list[Manifest]:
    """Every object of a release named `vlm`."""
    # The C parser: rendering is quick, Python's parser is not.
    return [each for each in yaml.load_all(as_text(chart, values), yaml.CSafeLoader) if each]


def as_text(chart: helm_python.Chart, values: Values | None = None) -> str:
    """The same as YAML, without the tokens that are drawn at random at every rendering."""
    files = chart.render(values=values or {}, name="vlm", namespace="serving")
    text = "\n---\n".join(text for name, text in sorted(files.items()) if name.endswith(".yaml"))
    return re.sub(r"^  token: .*$", "  token: drawn", text, flags=re.MULTILINE)


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """(name of its owner, pod template) of every workload."""
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            yield manifest["metadata"]["name"], manifest["spec"]["template"]
        elif manifest["kind"] == "RayService":
            yield from ray_pods(manifest)


def ray_pods(service: Manifest) -> Iterator[tuple[str, Manifest]]:
    """(name of its group, pod template) of a RayService's pods, the head's first."""
    cluster = service["spec"]["rayClusterConfig"]
    yield "head", cluster["headGroupSpec"]["template"]
    for group in cluster["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """(name of the owner, container), those that initialise included."""
    for name, pod in pods(manifests):
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            yield name, container


def leaves(values: Values, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all values that are not sections."""
    for key, value in values.items():
        if isinstance(value, dict) and value and not key.lower().endswith("resources"):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def with_value(values: Values, path: tuple[str, ...], value: Any) -> Values:
    """A copy with one value changed."""
    changed = deepcopy(values)
    section = changed
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = value
    return changed


def merged(base: Values, over: Values) -> Values:
    """A copy of `base` with `over` on top, section by section."""
    result = deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else deepcopy(value)
    return result
