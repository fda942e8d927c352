"""Runs one service from settings to a clean exit: signals, drain, exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

from triptych.errors import TriptychError

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service(Protocol):
    """What a process runs."""

    async def start(self) -> None:
        """Open everything; returns once the service accepts work."""

    async def stop(self) -> None:
        """Drain within a bounded grace, then close everything."""


async def _run(service: Service) -> None:
    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(service.start())
    stopping = asyncio.Event()

    def on_signal() -> None:
        stopping.set()
        starting.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await starting
        log.info("ready")
        await stopping.wait()
        log.info("draining")
    except asyncio.CancelledError:
        log.info("stopped while starting")
    finally:
        await service.stop()


def run_service(build: Callable[[], Service]) -> int:
    """Run until SIGTERM or SIGINT; 0 after a clean drain, 1 with one sentence when starting failed."""
    try:
        asyncio.run(_run(build()))
    except TriptychError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    return 0


async def retry_until(name: str, attempt: Callable[[], Awaitable[bool]], every_s: float = 0.5) -> None:
    """Repeat `attempt` until it returns True, saying once in ten seconds what is waited for."""
    tries = 0
    while not await attempt():
        if tries % max(1, round(10 / every_s)) == 0:
            log.info("waiting for %s", name)
        tries += 1
        await asyncio.sleep(every_s)
