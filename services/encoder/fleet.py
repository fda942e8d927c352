"""The replicas as the front sees them: one awaitable call a picture."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, TypeVar, cast

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from common.tracing import outgoing
from services.encoder.work import Description, Done, Failure, Task
from triptych.errors import UnavailableError

log = logging.getLogger(__name__)
Value = TypeVar("Value")
# A replica that dies takes its pictures with it; encoding twice is harmless.
ATTEMPTS = 3


class Replicas(Protocol):
    """Where the replicas come from."""

    async def start(self, front: str) -> DeploymentHandle[Any]:
        """Their handle. Replicas report to `front`, host:port. ConfigError when they do not start."""

    async def stop(self) -> None:
        """Also after a start that failed or was cancelled."""


class Fleet:
    """Calls the replicas; Ray spreads the calls over them."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._handle: DeploymentHandle[Any] | None = None

    async def start(self, front: str) -> Description:
        """Start replicas that report to `front`; returns what they have loaded. ConfigError when they cannot."""
        handle = await self._replicas.start(front)
        description: Description = _unwrap(await handle.describe.remote())
        self._handle = handle
        return description

    async def stop(self) -> None:
        """Stop; also after a start that failed or was cancelled."""
        self._handle = None
        await self._replicas.stop()

    async def ensure(self, task: Task) -> Done:
        """Return once the picture's embedding is in the store; raises what the replica raised."""
        for _ in range(ATTEMPTS):
            try:
                return _unwrap(await self._call(task))
            except RayActorError:
                log.warning("a replica died; its image goes to another")
            except (RayError, RayServeException):
                log.exception("Ray failed")
                break
        raise UnavailableError("no encoder replica could take the image", retry_after_s=1.0)

    async def _call(self, task: Task) -> Done | Failure:
        if self._handle is None:
            raise UnavailableError("the encoder is starting or stopping", retry_after_s=1.0)
        response = self._handle.ensure.remote(task, outgoing())
        try:
            return cast("Done | Failure", await response)
        except asyncio.CancelledError:
            # Cancelling the wait does not reach the replica by itself.
            response.cancel()  # type: ignore[no-untyped-call]
            raise


def _unwrap(value: Value | Failure) -> Value:
    if isinstance(value, Failure):
        raise value.error()
    return value
