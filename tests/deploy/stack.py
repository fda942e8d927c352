"""The cluster of docker-compose.yml in a test's engine, as somebody outside its networks sees and disturbs it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.engine import Engine
from tests.deploy.images import ROOT
from tests.deploy.secret_files import SecretFiles
from tests.valkey import free_port
from triptych import Client

log = logging.getLogger(__name__)
PROJECT, TAG = "triptych-drill", "drill"
COMPOSE = str(Path(sys.executable).parent / "docker-compose")
# Long, because all of it may share two cores with something else.
PATIENCE_S = 240.0


class Stack:
    """`grpc` and `http` are where the router is published, `prometheus` where that is; whoever asks needs a key."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.secrets = SecretFiles.write(engine.folder / "secrets")
        self.grpc, self.http, self.prometheus = (f"127.0.0.1:{free_port()}" for _ in range(3))
        published = {"GRPC": self.grpc, "HTTP": self.http, "PROMETHEUS": self.prometheus, "TAG": TAG}
        self._given = {f"TRIPTYCH_{name}": value for name, value in published.items()} | self.secrets.environment

    def client(self) -> Client:
        """From outside, with the key."""
        return Client(self.grpc, api_key=self.secrets.key)

    def compose(self, *arguments: str) -> str:
        """`docker compose ...` of the top-level file, which has to succeed."""
        environment = {**self.engine.environment, **self._given}
        command = [COMPOSE, "-p", PROJECT, "--profile", "monitoring", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr[-2000:]}\n{self.last_words()}"
        return done.stdout

    def up(self, *options: str) -> None:
        """Start what is not there and wait until everything is healthy.

        On a machine that is busy with something else Ray gives up after 30 s. The engine starts the encoder again, but
        compose takes its end for final if it sees it: a second call does not.
        """
        command = ["up", "--no-build", "--wait", "--wait-timeout", str(int(PATIENCE_S)), *options]
        try:
            self.compose(*command)
        except AssertionError as error:
            log.warning("once more, after %s", error)
            self.compose(*command)

    def last_words(self) -> str:
        """The end of each container's log, for whoever reads why a test failed."""
        names = self.engine.run("ps", "-a", "--format", "{{.Names}}").stdout.split()
        logs = ((name, self.engine.run("logs", "--tail", "8", name)) for name in names)
        return "\n".join(f"{name}: {log.stdout}{log.stderr}" for name, log in logs)

    def containers(self, service: str) -> list[str]:
        """Names of a service's containers that run."""
        return sorted(self.compose("ps", "--format", "{{.Name}}", service).split())

    def state(self, container: str) -> dict[str, Any]:
        """What the engine says of a container: Pid, Health, ExitCode, ..."""
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", "--format", "{{json .State}}", container))
        return found

    def kill(self, container: str) -> None:
        """SIGKILL from outside, as the kernel does it when memory ends; then it is back and healthy.

        `docker kill` would not do: the engine does not bring back what it was told to kill.
        """
        before = self.state(container)
        assert before["Pid"] > 1
        os.kill(before["Pid"], signal.SIGKILL)
        self.wait(lambda: self._is_back(container, before["StartedAt"]), f"{container} healthy again")

    def _is_back(self, container: str, started_at: str) -> bool:
        state = self.state(container)
        return bool(state["StartedAt"] != started_at and state["Health"]["Status"] == "healthy")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}\n{self.last_words()}"
            time.sleep(0.25)

    def wait_until_ready(self) -> None:
        """Until the router has workers of each role."""
        self.wait(self._is_ready, "the router ready")

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{self.http}/readyz").status_code == 200
        except httpx.HTTPError:
            return False
