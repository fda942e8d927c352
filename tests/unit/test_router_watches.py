"""What the router's log says of workers that are lost."""

from __future__ import annotations

import asyncio
import logging
from unittest.mock import Mock

import pytest

from common.rpc.channels import Channels
from services.router.placing import watches
from services.router.placing.cacheview import CacheView
from services.router.placing.watches import Watches
from triptych.v1.worker_pb2 import WorkerInfo


async def test_a_dead_worker_is_one_line_until_it_has_been_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "RETRY_S", 0.0)
    subscribed = Watches(Mock(Channels), CacheView(1))
    ends, over = iter(["dead", "dead", "alive", "dead", "dead"]), asyncio.Event()

    async def listen(address: str) -> None:
        match next(ends, None):
            case None:
                over.set()
                await asyncio.Event().wait()
            case "alive":
                subscribed._alive.add(address)
        raise TimeoutError

    monkeypatch.setattr(subscribed, "_listen", listen)
    with caplog.at_level(logging.INFO):
        await subscribed.follow([WorkerInfo(address="a:1")])
        await over.wait()
    await subscribed.close()
    told = "worker a:1: it is silent for 5 s and gets no new work"
    assert [record.getMessage() for record in caplog.records] == [told] * 2
