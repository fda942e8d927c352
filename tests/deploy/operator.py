"""What a KubeRay operator does with a RayService, on this machine: Ray's nodes as processes, then the application."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import yaml

from tests.deploy.charts import Manifest, ray_pods
from tests.deploy.pods import HOST, LocalPod, Place

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64}
PATIENCE_S, ATTEMPTS = 240.0, 4


class Operator:
    """`nodes` are the pods of the groups by name; `head` is another one after `restart_head`."""

    def __init__(self, service: Manifest, place: Place, stack: ExitStack) -> None:
        self._spec, self._place, self._stack = service["spec"], place, stack
        self._templates = dict(ray_pods(service))
        cluster = self._spec["rayClusterConfig"]
        workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
        self._groups = {"head": cluster["headGroupSpec"], **workers}
        self.head = self._start_head(None)
        address = f"--address={HOST}:{self.head.ports['6379']}"
        self.nodes = {name: self._start(name, [address], TOKEN) for name in workers}

    def deploy(self) -> None:
        """Put the application until it is taken, and wait until it runs. An operator repeats itself, too."""
        config = yaml.safe_load(self._spec["serveConfigV2"])
        _wait(lambda: self._ask("PUT", config) is not None, self.head)
        _wait(self._runs, self.head)

    def restart_head(self) -> None:
        """A new head with the state of the old one, which is gone; returns once it has found the application.

        It is where the old one was: in a cluster both have the same service.
        """
        self.head = self._start_head(self.head.ports)
        _wait(self._runs, self.head)

    def _start_head(self, ports: Mapping[str, str] | None) -> LocalPod:
        environment = TOKEN
        if "gcsFaultToleranceOptions" in self._spec["rayClusterConfig"]:
            redis = self._place.redis.removeprefix("redis://").partition("/")[0]
            environment = TOKEN | {"RAY_REDIS_ADDRESS": redis, "RAY_external_storage_namespace": "cluster"}
        flags = ["--head", "--port=6379", "--dashboard-port=8265"]
        return self._start("head", flags, environment, ports)

    def _start(
        self, name: str, flags: list[str], environment: Mapping[str, str], ports: Mapping[str, str] | None = None
    ) -> LocalPod:
        (container,) = self._templates[name]["spec"]["containers"]
        given = self._groups[name]["rayStartParams"]
        parameters = {key: "".join(shlex.split(value)) for key, value in given.items()}
        words = [f"--{key}" if value == "true" else f"--{key}={value}" for key, value in parameters.items()]
        # Pods have a machine and a /tmp each; here they share one, and sockets need short paths.
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True))
        alone = [f"--node-ip-address={HOST}", f"--temp-dir={directory}", "--dashboard-agent-listen-port=52365"]
        command = ["ray", "start", "--block", *flags, *words, *alone]
        env = [*container["env"], *({"name": key, "value": value} for key, value in environment.items())]
        return self._until_healthy({**container, "command": command, "env": env}, ports)

    def _until_healthy(self, container: Manifest, ports: Mapping[str, str] | None) -> LocalPod:
        """Started again when it ends, as by a kubelet: Ray gives up after 30 s, which a busy machine may need."""
        for _ in range(ATTEMPTS):
            pod = LocalPod(container, self._place, ports)
            self._stack.callback(pod.close)
            _wait(lambda: not pod.runs() or pod.answers("52365", "/api/healthz"), pod)  # noqa: B023 called at once
            if pod.runs():
                return pod
            # What is left of it holds the ports of the next one.
            words = pod.last_words()
            pod.close()
        raise AssertionError(words)

    def _runs(self) -> bool:
        found = (self._ask("GET", None) or {}).get("applications", {}).get("encoder", {})
        return bool(found.get("status") == "RUNNING")

    def _ask(self, method: str, body: Any) -> Any:
        url = f"http://{HOST}:{self.head.ports['8265']}/api/serve/applications/"
        bearer = {"Authorization": f"Bearer {TOKEN['RAY_AUTH_TOKEN']}"}
        try:
            answer = httpx.request(method, url, json=body, headers=bearer, timeout=60)
        except httpx.HTTPError:
            return None
        return (answer.json() if method == "GET" else answer.text) if answer.status_code == 200 else None


def _wait(holds: Callable[[], bool], pod: LocalPod) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, pod.last_words()
        time.sleep(0.5)


@contextmanager
def operator(service: Manifest, place: Place) -> Iterator[Operator]:
    """One that has started the nodes; the application is not yet on them."""
    with ExitStack() as stack:
        yield Operator(service, place, stack)
