"""A replica's reports: they go on whether or not anybody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from services.encoder import heartbeat
from services.encoder.heartbeat import Heartbeat
from triptych.errors import UnavailableError
from triptych.v1.encoder_pb2 import ReportReplicaRequest


class Front:
    """Hears the third report, and every one after it."""

    def __init__(self) -> None:
        self.told, self.heard = 0, asyncio.Event()

    async def tell(self, _: ReportReplicaRequest) -> None:
        self.told += 1
        if self.told < 3:
            raise UnavailableError("the front is away")
        self.heard.set()


def reporting() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "replica-report"]


@pytest.fixture
async def front(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    monkeypatch.setattr(heartbeat, "REPORT_EVERY_S", 0.0)
    yield Front()
    for task in reporting():
        task.cancel()


async def test_a_front_that_is_away_is_told_again_and_complained_of_once(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Heartbeat(front.tell, ReportReplicaRequest).start()
        await asyncio.wait_for(front.heard.wait(), 10)
    assert caplog.messages == ["the front does not hear this replica: the front is away"]


async def test_starting_twice_is_starting_once(front: Front) -> None:
    beats = Heartbeat(front.tell, ReportReplicaRequest)
    beats.start()
    beats.start()
    assert len(reporting()) == 1
