"""A whole cluster on one machine as child processes: started at once, watched, and stopped without leftovers.

    with LocalCluster(ClusterOptions(model=Path("models/triptych-demo"))) as cluster:
        print(Client(cluster.grpc_address).generate("Hello!").answer().text)

Used by `triptych up`, the demo, tests and benchmarks.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from triptych.cli.child import Child, OnLine
from triptych.cli.plan import HOST, ClusterOptions, Part, cpu_cores, plan_cluster
from triptych.cli.probe import free_port, is_ready, why_taken
from triptych.errors import ConfigError, UnavailableError

POLL_S = 0.1
READY_TIMEOUT_S = 300.0
# The router first: it lets answers end while the workers are still there.
STOP_ORDER = (("router",), ("encoder", "prefill", "decode", "worker"), ("valkey",))
# Streams go on elsewhere meanwhile, or wait; without Redis or router there is nothing to go on with.
RESTARTED = ("encoder", "prefill", "decode", "worker")
MAX_RESTARTS, QUIET_S = 3, 60.0
OnReady = Callable[[Part, float], None]


def _ignore(*_: object) -> None:
    """No one listens."""


class LocalCluster:
    """`on_line(part name, line)` gets every log line, `on_ready(part, seconds)` every part that comes up."""

    def __init__(
        self,
        options: ClusterOptions,
        on_line: OnLine = _ignore,
        on_ready: OnReady = _ignore,
        grace_s: float = 10.0,
    ) -> None:
        self._on_line, self._on_ready, self._grace_s = on_line, on_ready, grace_s
        self._interrupts = 0
        self.options = options
        self._directory = Path(tempfile.mkdtemp(prefix="triptych-"))
        self.parts: list[Part] = self._plan()
        self.children: dict[str, Child] = {}
        self._restarts: Counter[str] = Counter()

    def _plan(self) -> list[Part]:
        try:
            return plan_cluster(self.options, free_port, cpu_cores(), self._directory)
        except ConfigError:
            self._directory.rmdir()
            raise

    @property
    def grpc_address(self) -> str:
        """host:port for the SDK."""
        return self.parts[-1].address

    @property
    def http_url(self) -> str:
        """Root of the router's HTTP server; the OpenAI API is below /v1."""
        return f"http://{HOST}:{self.parts[-1].also_listens[0]}"

    @property
    def redis_url(self) -> str:
        """The Redis or Valkey that all parts share."""
        return self.options.redis or f"redis://{self.parts[0].address}/0"

    def __enter__(self) -> Self:
        """Start everything and wait until it is ready."""
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all processes at once; they wait for each other. ConfigError when a port that was named is taken."""
        for flag, port in (("--grpc-port", self.options.grpc_port), ("--http-port", self.options.http_port)):
            # The router would find out, too, but only when everybody has begun to load.
            if port and (why := why_taken(port)):
                raise ConfigError(f"port {port} cannot be had ({why}): choose another with {flag}, or 0 for a free one")
        for part in self.parts:
            self.children[part.name] = Child(part, self._on_line)

    def replace(self, name: str) -> None:
        """Kill a part with all it has started and start it anew at the same address; returns once it is ready.

        ConfigError when there is no such part, otherwise as `wait_ready`.
        """
        if name not in self.children:
            raise ConfigError(f"this cluster has no part {name!r}, but {', '.join(self.children)}")
        old = self.children[name]
        old.reap()
        self.children[name] = Child(old.part, self._on_line)
        self.wait_ready()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """True once every part is ready, False when interrupted; UnavailableError when one ends or time runs out."""
        deadline = time.monotonic() + timeout_s
        waiting = list(self.children.values())
        while waiting and not self._interrupts:
            self.check()
            waiting = [child for child in waiting if not self._came_up(child)]
            if time.monotonic() > deadline:
                raise UnavailableError(f"not ready after {timeout_s:.0f} s: {_names(waiting)}")
            time.sleep(POLL_S)
        return not waiting

    def watch(self) -> None:
        """Return when interrupted. A worker that ends is started again, as an orchestrator would.

        UnavailableError when another part ends, or a worker for the fourth time without a quiet minute in between.
        """
        while not self._interrupts:
            for child in [child for child in self.children.values() if child.status is not None]:
                self._start_again(child)
            time.sleep(POLL_S)

    def _start_again(self, ended: Child) -> None:
        part, lived_s = ended.part, time.monotonic() - ended.started_at
        self._restarts[part.name] = 1 if lived_s > QUIET_S else self._restarts[part.name] + 1
        if part.kind not in RESTARTED or self._restarts[part.name] > MAX_RESTARTS:
            raise UnavailableError(ended.ended_line())
        self._on_line(part.name, f"ended with status {ended.status}; it is started again")
        ended.reap()
        self.children[part.name] = Child(part, self._on_line)

    def check(self) -> None:
        """UnavailableError with the last log lines of a part that has ended."""
        for child in self.children.values():
            if child.status is not None:
                raise UnavailableError(child.ended_line())

    def interrupt(self) -> None:
        """End `wait_ready` and `watch`; a second call cuts the grace of `stop` short. Safe in signal handlers."""
        self._interrupts += 1

    def stop(self) -> None:
        """SIGTERM in stages, SIGKILL after the grace, for each process and all that it started. Harmless twice."""
        for kinds in STOP_ORDER:
            self._stop_stage([child for child in self.children.values() if child.part.kind in kinds])
        self.children.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _came_up(self, child: Child) -> bool:
        if not is_ready(child.part):
            return False
        self._on_ready(child.part, time.monotonic() - child.started_at)
        return True

    def _stop_stage(self, children: list[Child]) -> None:
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._interrupts < 2 and any(child.status is None for child in children):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S / 2)
        for child in children:
            child.reap()


def _names(children: Iterable[Child]) -> str:
    return ", ".join(child.part.name for child in children)
