"""The seam in front of a peer's KvService: a two-way stream of push messages, by gRPC or by whatever joins later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import grpc

from common.kv.frames import PushFrame, encode
from common.rpc.channels import Channels
from triptych.errors import UnavailableError
from triptych.status import DETAILS_KEY, from_rpc_error
from triptych.v1 import kv_pb2

NAME = "triptych.v1.KvService"


class Link(Protocol):
    """One stream to a peer. One task may send while another receives. Everything raises a `TriptychError`."""

    async def send(self, frame: PushFrame) -> None:
        """Hand over a message; returns once the transport has room for the next one."""

    async def receive(self) -> kv_pb2.PushResponse:
        """The next answer. The peer's error, or UnavailableError when the stream broke or ended."""

    def close(self) -> None:
        """Give the stream up; idempotent."""


class Links(Protocol):
    """Opens streams."""

    def open(self, address: str) -> Link:
        """A new stream to the KvService at `host:port`; failing to connect shows at its first use."""


class GrpcLinks:
    """Streams over the process's gRPC channels."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def open(self, address: str) -> Link:
        """A new `Push` call."""
        return _GrpcLink(self._channels.get(address), f"KV at {address}")


class _GrpcLink:
    def __init__(self, channel: grpc.aio.Channel, peer: str) -> None:
        self._peer = peer
        method: grpc.aio.StreamStreamMultiCallable[PushFrame, kv_pb2.PushResponse] = channel.stream_stream(
            f"/{NAME}/Push", request_serializer=encode, response_deserializer=kv_pb2.PushResponse.FromString
        )
        self._call = method()

    async def send(self, frame: PushFrame) -> None:
        with stream_errors(self._peer):
            try:
                await self._call.write(frame)
            except asyncio.InvalidStateError:
                await self._raise_status()

    async def receive(self) -> kv_pb2.PushResponse:
        with stream_errors(self._peer):
            answer = await self._call.read()
        if isinstance(answer, kv_pb2.PushResponse):
            return answer
        raise UnavailableError(f"{self._peer} ended the stream")

    def close(self) -> None:
        self._call.cancel()

    async def _raise_status(self) -> None:
        call = self._call
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )


@contextmanager
def stream_errors(peer: str) -> Iterator[None]:
    """Map what gRPC raises: the peer's own error, or UnavailableError for a stream that broke, whatever its status."""
    try:
        yield
    except asyncio.CancelledError:
        # A call that ends as CANCELLED raises this in whoever uses it, although nobody has cancelled that task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnavailableError(f"{peer} cancelled the stream") from None
    except grpc.aio.AioRpcError as exc:
        error = from_rpc_error(exc, peer)
        if DETAILS_KEY in dict(exc.trailing_metadata() or ()):
            raise error from exc
        raise UnavailableError(error.message) from exc
