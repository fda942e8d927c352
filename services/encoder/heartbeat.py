"""A replica's reports to the front, which cannot ask: Ray decides which replica a call reaches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from common.rpc.channels import Channels
from common.tracing.sparing import SparingLog
from services.encoder.book import REPORT_EVERY_S
from triptych.errors import TriptychError
from triptych.status import rpc_errors
from triptych.v1.encoder_pb2 import ReportReplicaRequest
from triptych.v1.encoder_pb2_grpc import EncoderServiceStub

log = SparingLog(logging.getLogger(__name__))
# Carries a report to the front; a TriptychError when it does not arrive.
Tell = Callable[[ReportReplicaRequest], Awaitable[object]]


class Heartbeat:
    """Reports as long as the process lives, whether or not anybody listens."""

    def __init__(self, tell: Tell, report: Callable[[], ReportReplicaRequest]) -> None:
        self._tell, self._report = tell, report
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, once; needs a running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._repeat(), name="replica-report")

    async def _repeat(self) -> None:
        while True:
            await self._say()
            await asyncio.sleep(REPORT_EVERY_S)

    async def _say(self) -> None:
        try:
            await self._tell(self._report())
        except TriptychError as error:
            log.warning("the front does not hear this replica: %s", error.message)


def by_grpc(address: str, channels: Channels) -> Tell:
    """To a front at host:port."""

    async def tell(report: ReportReplicaRequest) -> None:
        with rpc_errors("the front"):
            await EncoderServiceStub(channels.get(address)).ReportReplica(report, timeout=REPORT_EVERY_S)

    return tell
