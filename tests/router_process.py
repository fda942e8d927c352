"""The router as a process of its own, on ports that it chooses itself."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.contract.router_bench import MODEL

START_S = 120.0
LISTENING = re.compile(r"gRPC on (\S+:\d+), HTTP on (\S+:\d+)")


class Router:
    """`python -m services.router`; `address` and `url` are known once it listens."""

    def __init__(self, log: Path, flags: tuple[str, ...], environment: Mapping[str, str] | None) -> None:
        self._log = log
        command = [sys.executable, "-m", "services.router", "--model", str(MODEL), "--port", "0", "--http-port", "0"]
        with log.open("wb") as file:
            self.process = subprocess.Popen([*command, *flags], stderr=file, env=environment)
        self.address, http = self._listening()
        self.url = f"http://{http}"

    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8")

    def _listening(self) -> tuple[str, str]:
        deadline = time.monotonic() + START_S
        while (found := LISTENING.search(self.log())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"the router did not start: {self.log()}")
            time.sleep(0.05)
        return found[1], found[2]


@contextmanager
def router_process(
    redis_url: str, directory: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[Router]:
    """One that listens, killed at the end; its log lies in `directory`."""
    router = Router(directory / "router.log", ("--redis-url", redis_url, *flags), environment)
    try:
        yield router
    finally:
        router.process.kill()
        router.process.wait()
