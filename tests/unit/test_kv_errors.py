"""Whose cancellation it was: a peer's is a failure of the peer, one's own stays what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from common.kv.links import stream_errors
from triptych.errors import UnavailableError
from triptych.status import rpc_errors


@pytest.mark.parametrize("mapping", [rpc_errors, stream_errors])
async def test_a_call_that_its_peer_cancels_is_unavailable(
    mapping: Callable[[str], AbstractContextManager[None]],
) -> None:
    with pytest.raises(UnavailableError, match="peer cancelled"), mapping("peer"):
        raise asyncio.CancelledError


@pytest.mark.parametrize("mapping", [rpc_errors, stream_errors])
async def test_a_task_that_is_cancelled_stays_cancelled(mapping: Callable[[str], AbstractContextManager[None]]) -> None:
    async def wait() -> None:
        with mapping("peer"):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
