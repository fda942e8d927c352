"""Waiting for one thing while others may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless_failed(wanted: asyncio.Future[T], *others: Coroutine[Any, Any, None]) -> T:
    """The result of `wanted`, or the error of whichever of `others` fails first; those still running are cancelled."""
    tasks: set[asyncio.Future[Any]] = {asyncio.ensure_future(other) for other in others}
    pending = {wanted, *tasks}
    try:
        while not wanted.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {wanted}:
                task.result()
        return wanted.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
