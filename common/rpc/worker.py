"""WorkerService, the same for every role: description, load, drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from triptych.v1 import worker_pb2, worker_pb2_grpc

FULL_NAME = "triptych.v1.WorkerService"


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers from the callables it is given; holds no state of its own."""

    def __init__(
        self,
        info: Callable[[], worker_pb2.WorkerInfo],
        load: Callable[[], worker_pb2.GetLoadResponse],
        drain: Callable[[], None],
    ) -> None:
        self._info, self._load, self._drain = info, load, drain

    async def GetInfo(
        self, request: worker_pb2.GetInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.GetInfoResponse:
        """The current description."""
        return worker_pb2.GetInfoResponse(info=self._info())

    async def GetLoad(
        self, request: worker_pb2.GetLoadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.GetLoadResponse:
        """The current load."""
        return self._load()

    async def Drain(
        self, request: worker_pb2.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.DrainResponse:
        """Stop taking new work; idempotent."""
        self._drain()
        return worker_pb2.DrainResponse()
