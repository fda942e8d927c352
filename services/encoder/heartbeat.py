"""A replica's reports to the front, which cannot ask: Ray decides which replica a call reaches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from common.rpc.channels import Channels
from services.encoder.book import REPORT_EVERY_S
from triptych.v1.encoder_pb2 import ReportReplicaRequest
from triptych.v1.encoder_pb2_grpc import EncoderServiceStub

log = logging.getLogger(__name__)


class Heartbeat:
    """Reports to `address` as long as the process lives, whether or not anybody listens."""

    def __init__(self, address: str, report: Callable[[], ReportReplicaRequest], channels: Channels) -> None:
        self._address, self._report, self._channels = address, report, channels
        self._task: asyncio.Task[None] | None = None
        self._heard = True

    def start(self) -> None:
        """Begin, once; needs a running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._repeat(), name="replica-report")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channels.close()

    async def _repeat(self) -> None:
        while True:
            await self._say()
            await asyncio.sleep(REPORT_EVERY_S)

    async def _say(self) -> None:
        stub = EncoderServiceStub(self._channels.get(self._address))
        try:
            await stub.ReportReplica(self._report(), timeout=REPORT_EVERY_S)
        except grpc.aio.AioRpcError as error:
            if self._heard:
                log.warning("the front does not hear this replica: %s", error.code().name)
            self._heard = False
            return
        self._heard = True
