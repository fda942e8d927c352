"""How often, and how long, a stream that broke is opened again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from common.tracing.sparing import SparingLog
from triptych.errors import UnavailableError

log = SparingLog(logging.getLogger(__name__))

ATTEMPTS = 5
BACKOFF_S = 0.05
"""Wait before the first resumption; doubles each time."""

Result = TypeVar("Result")


async def resuming(attempt: Callable[[], Awaitable[Result]], lease_end: Callable[[], float]) -> Result:
    """Repeat `attempt` while it raises UnavailableError, unless the wait would outlast `lease_end` (loop seconds)."""
    for failed in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except UnavailableError as error:
            wait = BACKOFF_S * 2**failed
            if asyncio.get_running_loop().time() + wait >= lease_end():
                raise
            log.warning("a KV transfer broke off and is resumed: %s", error.message)
            await asyncio.sleep(wait)
    return await attempt()
