"""Telling an own end from the other side's."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether somebody wants the running task to end: grpc.aio raises CancelledError also when a peer ends a call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
