"""The fleet as an application that Ray Serve itself runs, front included: what a KubeRay `RayService` imports.

`python -m services.encoder` is a driver of Ray, and its replicas end with it. Here nobody drives: Serve starts front
and replicas, and starts again whichever dies. Each process reads its settings from its own environment, so that no
secret passes through Ray.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from common.tracing import configure_logging, start_tracing
from services.encoder.book import REPORT_EVERY_S
from services.encoder.deployment import EncoderDeployment, deployment_options
from services.encoder.fleet import Fleet
from services.encoder.heartbeat import Tell
from services.encoder.process import EncoderProcess
from services.encoder.settings import EncoderSettings
from triptych.errors import UnavailableError
from triptych.v1.encoder_pb2 import ReportReplicaRequest

log = logging.getLogger(__name__)
FRONT = "front"


class HostedReplica(EncoderDeployment):
    """A replica that finds the front by Ray, wherever that runs now."""

    def __init__(self) -> None:
        super().__init__(EncoderSettings.load([]).for_replica(), by_handle(serve.get_deployment_handle(FRONT)))


class HostedFront:
    """The front of `python -m services.encoder`, as a deployment of one replica."""

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        settings = EncoderSettings.load([])
        configure_logging("encoder", settings.log_level, settings.log_format)
        self._end_tracing = start_tracing("encoder", settings.otlp_endpoint, settings.trace_ratio)
        self._process = EncoderProcess(settings, Fleet(GivenReplicas(replicas)))
        self._started = False

    async def check_health(self) -> None:
        """Ray asks once the front is built, and takes it for ready then; later an answer is health enough."""
        if not self._started:
            await self._process.start()
            self._started = True

    async def report(self, report: bytes) -> None:
        """A replica's ReportReplicaRequest."""
        self._process.hear(ReportReplicaRequest.FromString(report))

    async def __del__(self) -> None:
        """Ray awaits it when the front is taken down: drain, leave the registry."""
        await self._process.stop()
        self._end_tracing()


class GivenReplicas:
    """`Replicas` that Serve starts and stops."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def start(self, front: str) -> DeploymentHandle[Any]:
        """Nothing to do; they report by handle."""
        return self._handle

    async def stop(self) -> None:
        """Not ours to stop."""


def by_handle(front: DeploymentHandle[Any]) -> Tell:
    """To a front that is a deployment of the same application."""

    async def tell(report: ReportReplicaRequest) -> None:
        try:
            async with asyncio.timeout(REPORT_EVERY_S):
                await front.report.remote(report.SerializeToString())
        except (RayError, RayServeException, TimeoutError) as exc:
            raise UnavailableError(f"the front does not answer: {type(exc).__name__}") from exc

    return tell


def application(_: dict[str, Any]) -> Application:
    """Serve's builder. Where the front may run is the config's matter: `ray_actor_options` of `front`."""
    settings = EncoderSettings.load([])
    replicas = serve.deployment(**deployment_options(settings))(HostedReplica)
    front = serve.deployment(
        name=FRONT,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.drain_grace_s + settings.replica_grace_s,
        # Its callers by Ray only report; those by gRPC are waited for by itself.
        graceful_shutdown_wait_loop_s=0.1,
    )(HostedFront)
    return front.bind(replicas.bind())
