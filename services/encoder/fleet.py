"""The replicas as the front sees them: one awaitable call a picture."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from services.encoder.cluster import RayCluster, restore_signals
from services.encoder.settings import EncoderSettings
from services.encoder.work import Description, Done, Failure, Task
from triptych.errors import UnavailableError

log = logging.getLogger(__name__)
Value = TypeVar("Value")
# A replica that dies takes its pictures with it; encoding twice is harmless.
ATTEMPTS = 3


class Fleet:
    """Starts and stops the Ray application and calls its replicas; Ray spreads the calls over them."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._cluster = RayCluster(settings, f"encoder-{settings.served_name}")
        # One thread for everything of Ray that blocks, so that stopping waits for starting.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._handle: DeploymentHandle[Any] | None = None

    async def start(self, front: str) -> Description:
        """Start replicas that report to `front`; returns what they have loaded. ConfigError when they cannot."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._cluster.connect)
        restore_signals()
        handle = await loop.run_in_executor(self._thread, self._cluster.deploy, front)
        description: Description = _unwrap(await handle.describe.remote())
        self._handle = handle
        return description

    async def stop(self) -> None:
        """Stop; also after a start that failed or was cancelled."""
        self._handle = None
        await asyncio.get_running_loop().run_in_executor(self._thread, self._cluster.stop)
        self._thread.shutdown()

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
        response = self._handle.ensure.remote(task)
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
