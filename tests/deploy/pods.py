"""Pods of the rendered chart as processes of this machine: same command, same environment, other ports and places."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.charts import Manifest
from tests.valkey import free_port
from triptych.cli.child import session_members

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
BIN = str(Path(sys.executable).parent)


@dataclass(frozen=True)
class Place:
    """What stands for the cluster around a pod: where Redis is, and where the model is mounted."""

    redis: str
    model: Path

    def translate(self, value: str) -> str:
        """A value of the environment, as it is here."""
        value = re.sub(r"^redis://:.*$", self.redis, value.replace("$(POD_IP)", HOST))
        return value.replace("/models/triptych-demo", str(self.model))


class LocalPod:
    """The first container of a pod. `ports` are local ones by the container's; unset: free ones."""

    def __init__(self, container: Manifest, place: Place, ports: Mapping[str, str] | None = None) -> None:
        self.container = container
        self.ports = ports or {str(port["containerPort"]): str(free_port()) for port in container["ports"]}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by stop
        self._process = subprocess.Popen(
            self._local(container["command"]),
            env=self._environment(place),
            cwd=ROOT,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _environment(self, place: Place) -> Mapping[str, str]:
        given = {each["name"]: place.translate(each["value"]) for each in self.container["env"] if "value" in each}
        ours = {name: self.ports.get(value, value) for name, value in given.items()}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIPTYCH_")}
        return {**kept, **ours, "PATH": f"{BIN}:{os.environ['PATH']}"}

    def _local(self, command: list[str]) -> list[str]:
        """A command with local ports; what the image has on its PATH is in this environment."""
        first = str(Path(BIN) / command[0])
        return [first, *(re.sub(r"(?<=[:=])\d+$", self._local_port, word) for word in command[1:])]

    def _local_port(self, found: re.Match[str]) -> str:
        return self.ports.get(found[0], found[0])

    def passes(self, probe: str) -> bool:
        """What the kubelet would find, with a probe of the manifest."""
        asked: dict[str, Any] = self.container[probe]
        if "exec" in asked:
            command = self._local(asked["exec"]["command"])
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        named = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        port = asked["httpGet"]["port"]
        return self.answers(str(named.get(port, port)), asked["httpGet"]["path"])

    def answers(self, port: str, path: str) -> bool:
        """True when a port of the manifest answers GET with 200."""
        try:
            return httpx.get(f"http://{HOST}:{self.ports[port]}{path}", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def serves_metrics(self) -> bool:
        """/metrics answers at the port that the manifest calls `metrics`, or at the router's `http`."""
        named = {port["name"]: str(port["containerPort"]) for port in self.container["ports"]}
        return self.answers(named.get("metrics", named.get("http", "")), "/metrics")

    def last_words(self) -> str:
        """The end of its log."""
        self._log.seek(0)
        return f"{self.container['name']}: {self._log.read()[-1500:]}"

    def runs(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def terminate(self) -> int:
        """SIGTERM; its exit status."""
        self._process.terminate()
        return self._process.wait(60)

    def close(self) -> None:
        """Kill it and whatever it started, also what outlived it; harmless after `terminate`, and twice."""
        if self._log.closed:
            return
        while members := session_members(self._process.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.01)
        self._process.wait()
        self._log.close()


@contextmanager
def local_pods(containers: list[Manifest], place: Place) -> Iterator[dict[str, LocalPod]]:
    """All of them by name, started at once, as Kubernetes does it."""
    with ExitStack() as stack:
        pods = {}
        for container in containers:
            pods[container["name"]] = LocalPod(container, place)
            stack.callback(pods[container["name"]].close)
        yield pods
