"""Calls to workers: whom they are meant for, and what their failures mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from triptych.errors import DeadlineExceededError, TriptychError, UnavailableError
from triptych.status import DETAILS_KEY, from_rpc_error, is_cancelled
from triptych.v1.worker_pb2 import WorkerInfo

log = logging.getLogger(__name__)
UNREACHED = "failed to connect"


class Trouble:
    """What the calls of one attempt met: the stage that failed first, workers whose calls failed (`suspects`), and of
    these the ones whose connection broke (`lost`).
    """

    def __init__(self) -> None:
        self.stage = ""
        self.suspects: set[str] = set()
        self.lost: set[str] = set()

    @contextmanager
    def watching(self, stage: str, info: WorkerInfo) -> Iterator[None]:
        """Map every failure of a call to `info` inside the block to the error tree."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            self._note(stage, info, broke(error))
            raise _mapped(error, stage) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._note(stage, info, lost=False)
            raise _given_up(stage) from error

    def _note(self, stage: str, info: WorkerInfo, lost: bool) -> None:
        self.stage = self.stage or stage
        self.suspects.add(info.instance_id)
        if lost:
            self.lost.add(info.instance_id)


def broke(error: grpc.aio.AioRpcError) -> bool:
    """Whether the connection broke during the call; a worker that was not even reached did not die of it."""
    return (
        error.code() is grpc.StatusCode.UNAVAILABLE
        and not _is_ours(error)
        and not (error.details() or "").startswith(UNREACHED)
    )


def _mapped(error: grpc.aio.AioRpcError, stage: str) -> TriptychError:
    if _is_ours(error):
        return from_rpc_error(error)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError("the request took longer than its deadline allows")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        log.info("%s: %s", stage, error.details())
        return UnavailableError(f"the connection to the {stage} worker failed")
    if error.code() is grpc.StatusCode.CANCELLED:
        # Not by us, who would have got a CancelledError: a server that stops ends its calls so.
        return _given_up(stage)
    return from_rpc_error(error, stage)


def _given_up(stage: str) -> UnavailableError:
    return UnavailableError(f"the {stage} worker has cancelled the call")


def _is_ours(error: grpc.aio.AioRpcError) -> bool:
    """Whether a worker of ours wrote the status, rather than gRPC itself."""
    return any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
