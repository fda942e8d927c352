"""Replicas whose application this process runs by itself, on a Ray cluster of its own or one that it joins."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ray.serve.handle import DeploymentHandle

from services.encoder.cluster import RayCluster, restore_signals
from services.encoder.settings import EncoderSettings

SIGNALS_EVERY_S = 0.1


class OwnReplicas:
    """`Replicas` that start and end with this process."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._cluster = RayCluster(settings, f"encoder-{settings.served_name}")
        # One thread for everything of Ray that blocks, so that stopping waits for starting.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    async def start(self, front: str) -> DeploymentHandle[Any]:
        """Start or join the cluster, and run the application on it. ConfigError when that fails."""
        loop = asyncio.get_running_loop()
        await _signals_kept(loop.run_in_executor(self._thread, self._cluster.connect))
        return await loop.run_in_executor(self._thread, self._cluster.deploy, front)

    async def stop(self) -> None:
        """Take the application down; also after a start that failed or was cancelled."""
        self._cluster.stopping.set()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._cluster.stop)
        self._thread.shutdown()


async def _signals_kept(connecting: asyncio.Future[None]) -> None:
    """Wait for it. At some moment Ray takes the signals, after which a SIGTERM would end this process on the spot."""
    try:
        while not connecting.done():
            await asyncio.wait([connecting], timeout=SIGNALS_EVERY_S)
            restore_signals()
        await connecting
    finally:
        connecting.cancel()
