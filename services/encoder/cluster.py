"""Ray's side of the fleet: starts a local cluster or joins one, runs the application, takes both down. All blocking."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from psutil import Process
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from services.encoder.deployment import DrivenReplica, deployment_options
from services.encoder.settings import EncoderSettings
from services.encoder.shared_memory import check_shared_memory
from services.encoder.starting import Offspring, end, repeat_if_late
from triptych.errors import ConfigError

log = logging.getLogger(__name__)
SERVE_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class RayCluster:
    """One application on one cluster. Its methods block and belong into one thread; `stopping` any thread may set."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self._temporary: Path | None = None
        self._offspring = Offspring()
        self._deployed = False
        self.stopping = threading.Event()

    def connect(self) -> None:
        """Start an own cluster or join one. ConfigError when that fails."""
        if self._settings.ray_address is None:
            check_shared_memory(int(self._settings.object_store))
        with _start_errors():
            if self._settings.ray_address is None:
                repeat_if_late(self._start_own, lambda: self._clear(self._offspring.living()), self.stopping)
            else:
                logs = self._settings.replica_logs
                ray.init(address=self._settings.ray_address, log_to_driver=logs, logging_level=logging.ERROR)

    def deploy(self, front: str) -> DeploymentHandle[Any]:
        """Run the application; its handle, once the first replicas are up. ConfigError when they do not start.

        Replicas report to `front`, host:port.
        """
        with _start_errors():
            serve.start(proxy_location="Disabled", logging_config=SERVE_LOGGING)
            # Tried once: this process ends with the reason, and whoever runs it starts it again.
            build = serve.deployment(**deployment_options(self._settings), max_constructor_retry_count=1)
            application = build(DrivenReplica).bind(self._settings.for_replica(), front)
            self._deployed = True
            return serve.run(application, name=self._name, route_prefix=None, logging_config=SERVE_LOGGING)

    def stop(self) -> None:
        """Take the application down, and the cluster with it if it is ours. Harmless when nothing runs."""
        started = self._offspring.living()
        if self._deployed:
            # Also before an own cluster goes: replicas that are killed with it would lose their last spans.
            with contextlib.suppress(RayError, RayServeException):
                serve.delete(self._name)
        if ray.is_initialized():
            ray.shutdown()
        self._clear(started)

    def _clear(self, started: set[Process]) -> None:
        # Ray's agents outlive what started them, and would write into the folder again.
        end(started)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _start_own(self) -> None:
        # A secret of this cluster alone, inherited by its processes; else Ray writes one to the home directory.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray.init(
            address="local",
            # Logical CPUs: nobody else uses this cluster, so it has what the settings ask for.
            num_cpus=math.ceil(self._settings.most_replicas * self._settings.cpus_per_replica) + 1,
            object_store_memory=int(self._settings.object_store),
            include_dashboard=False,
            log_to_driver=self._settings.replica_logs,
            logging_level=logging.ERROR,
            # Nobody outside this host belongs to it.
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._directory()),
        )

    def _directory(self) -> Path:
        if self._settings.ray_directory is not None:
            return self._settings.ray_directory.resolve()
        self._temporary = Path(tempfile.mkdtemp(prefix="ray-"))
        return self._temporary


def restore_signals() -> None:
    """Give SIGTERM and SIGINT back to Python: `ray.init` has put a handler in front that prints a stack.

    Main thread only.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.getsignal(number))
        signal.siginterrupt(number, False)


def quiet_ray() -> None:
    """Only what is wrong. Ray and Serve log every step of a normal start otherwise."""
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    quiet_ray()
    try:
        yield
    except Exception as exc:
        # Ray raises anything from ValueError to its own tree; while starting, all of it means the same.
        log.debug("Ray did not start", exc_info=exc)
        first = str(exc).strip().partition("\n")[0] or type(exc).__name__
        raise ConfigError(f"the encoder's Ray application did not start: {first}") from exc
