"""Writes what the chart says about itself: `values.schema.json` and `README.md`, from values.yaml and the settings.

`make chart` runs it, after a change of either. A test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from common.settings import ServiceSettings
from services.decode.settings import DecodeSettings
from services.encoder.settings import EncoderSettings
from services.prefill.settings import PrefillSettings
from services.router.settings import RouterSettings
from services.worker.settings import CombinedSettings

CHART = Path(__file__).parent / "triptych"
SETTINGS: dict[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "prefill": PrefillSettings,
    "decode": DecodeSettings,
    "worker": CombinedSettings,
    "encoder": EncoderSettings,
}
# What the templates set themselves.
MANAGED = {
    *("model", "model_name", "redis_url", "host", "port", "advertise", "log_level", "log_format", "metrics_port"),
    *("http_port", "keys_file", "otlp_endpoint", "trace_ratio", "ray_address", "ray_directory", "drain_grace_s"),
    *("tls_cert", "tls_key", "tls_ca", "tls_client_ca"),
}
CHOICES = {
    "model.source": ["pvc", "imageVolume", "initContainer", "image"],
    "global.pullPolicy": ["Always", "IfNotPresent", "Never"],
    "model.imageVolume.pullPolicy": ["Always", "IfNotPresent", "Never"],
    "global.logLevel": ["DEBUG", "INFO", "WARNING", "ERROR"],
    "router.service.type": ["ClusterIP", "NodePort", "LoadBalancer"],
    "tls.certManager.kind": ["Issuer", "ClusterIssuer"],
}
# Kubernetes' own objects, which the API server checks.
OPEN = re.compile(
    r"(labels|annotations|podAnnotations|nodeSelector|affinity|resources|headResources|frontResources|tolerations|env"
    r"|command|extraVolumes|extraVolumeMounts|parentRefs|hostnames|routerFrom|operatorFrom|egress|pullSecrets)$"
)
HEAD = """# triptych

Encode / prefill / decode disaggregated serving of vision-language models on Kubernetes. What the services do, how to
size them and what to watch is in the [operations guide](../../docs/operations.md).

    helm install vlm helm/triptych --values my-values.yaml

Profiles to begin with are in [`ci/`](ci): `cpu` (the least that answers), `gpu` (encode, prefill and decode on GPUs of
their own), `e-pd` (prefill and decode in one worker), `ha` (nothing that runs once, mutual TLS), `kuberay` (the encoder
as a RayService).

## Who runs Ray
The *front* is the encoder's gRPC server and its entry in the registry; a *tower* is one replica of Ray Serve with the
vision model; the *head* is Ray's control plane.

| values | Ray | towers | what a lost head costs |
|---|---|---|---|
| `encoder.replicas` | in each pod, of its own | in the same pod | that pod's encoder, until it is up again |
| `encoder.workers` | a head beside the front | one in each worker pod | all encoding, until towers have joined again |
| `encoder.kuberay.enabled` | a KubeRay operator's | one in each `towers` pod | nothing (`faultTolerance`) |

KubeRay 1.5.1 or newer must be installed. Its `RayService` deploys `services.encoder.hosted:application`: the front is a
deployment, too, and Ray starts it again where it dies. What Ray knows of them is in Redis
(`encoder.kuberay.faultTolerance`), in entries without an expiry: leave `redis.policy` one of the `volatile` kind. When
Redis itself loses them, the next head begins anew, and the operator deploys again.

What happens when the front's pod goes is in the [operations guide](../../docs/operations.md#stopping-and-replacing).

`kubectl logs` of these pods shows Ray; what front and towers say is in files that Ray writes:
`kubectl exec POD -- sh -c 'cat /tmp/ray/session_latest/logs/worker-*.err'`.

## Values
"""
_KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(.*)$")


def schema(values: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of the values: unknown keys are refused at every level, those of settings included."""
    found = _schema(values, "")
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    # Helm itself adds this one when the chart is a dependency.
    found["properties"]["global"]["additionalProperties"] = False
    return found


def readme(text: str) -> str:
    """The page: one table row for each value that has a comment."""
    rows = [f"| `{path}` | `{default}` | {comment} |" for path, default, comment in documented(text)]
    return HEAD + "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def documented(text: str) -> Iterator[tuple[str, str, str]]:
    """(path, default as JSON, comment) of every key below a `# --` comment, in order."""
    values, path, comment = yaml.safe_load(text), list[tuple[int, str]](), ""
    for line in text.splitlines():
        if line.strip().startswith("# -- "):
            comment = line.strip().removeprefix("# -- ")
        elif match := _KEY.match(line):
            indent = len(match[1])
            path = [*(each for each in path if each[0] < indent), (indent, match[2])]
            if comment:
                yield ".".join(key for _, key in path), _default(values, [key for _, key in path]), comment
            comment = ""


def _default(values: Any, path: list[str]) -> str:
    for key in path:
        values = values[key]
    return json.dumps(values)


def _schema(value: Any, path: str) -> dict[str, Any]:
    if path.endswith(".settings"):
        return _settings(path.removesuffix(".settings"))
    if path in CHOICES:
        return {"type": "string", "enum": CHOICES[path]}
    if isinstance(value, dict) and not OPEN.search(path):
        properties = {key: _schema(each, f"{path}.{key}" if path else key) for key, each in value.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    return _plain(value, path)


def _plain(value: Any, path: str) -> dict[str, Any]:
    if OPEN.search(path):
        return {"type": ["object", "array", "null"]}
    kinds: dict[type, Any] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    found: dict[str, Any] = {"type": kinds[type(value)]}
    return found | ({"minimum": 0} if found["type"] in ("integer", "number") else {})


def _settings(component: str) -> dict[str, Any]:
    names = sorted(set(SETTINGS[component].model_fields) - MANAGED)
    fields = SETTINGS[component].model_fields
    properties = {
        name: {"type": ["string", "number", "boolean"], "description": fields[name].description or ""} for name in names
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def render() -> dict[str, str]:
    """The generated files by name."""
    text = (CHART / "values.yaml").read_text()
    return {
        "values.schema.json": json.dumps(schema(yaml.safe_load(text)), indent=1) + "\n",
        "README.md": readme(text),
    }


def main() -> None:
    """Write them."""
    for name, content in render().items():
        (CHART / name).write_text(content)


if __name__ == "__main__":
    main()
