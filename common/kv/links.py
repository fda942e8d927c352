"""The seam in front of a peer's KvService: two-way streams of messages, by gRPC or by whatever joins later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc

from common.kv.frames import PullFrame, PushFrame, decode_pull, encode
from common.rpc.channels import Channels
from common.tracing import outgoing
from triptych.errors import TriptychError, UnavailableError
from triptych.status import DETAILS_KEY, rpc_errors
from triptych.v1 import kv_pb2

NAME = "triptych.v1.KvService"

Out_contra = TypeVar("Out_contra", contravariant=True)
In_co = TypeVar("In_co", covariant=True)


class Link(Protocol[Out_contra, In_co]):
    """One stream to a peer. One task may send while another receives. Everything raises a `TriptychError`."""

    async def send(self, message: Out_contra) -> None:
        """Hand over a message; returns once the transport has room for the next one."""

    async def receive(self) -> In_co:
        """The next message of the peer. The peer's error, or UnavailableError when the stream broke or ended."""

    def close(self) -> None:
        """Give the stream up; idempotent."""


PushLink = Link[PushFrame, kv_pb2.PushResponse]
PullLink = Link[kv_pb2.PullRequest, PullFrame]


class Links(Protocol):
    """Opens streams to the KvService at `host:port`; failing to connect shows at a stream's first use."""

    def push(self, address: str) -> PushLink:
        """A stream that gives KV."""

    def pull(self, address: str) -> PullLink:
        """A stream that takes KV."""


class GrpcLinks:
    """Streams over the process's gRPC channels."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def push(self, address: str) -> PushLink:
        """A new `Push` call."""
        return _GrpcLink(
            self._channels.get(address).stream_stream(
                f"/{NAME}/Push", request_serializer=encode, response_deserializer=kv_pb2.PushResponse.FromString
            ),
            f"KV at {address}",
        )

    def pull(self, address: str) -> PullLink:
        """A new `Pull` call."""
        return _GrpcLink(
            self._channels.get(address).stream_stream(
                f"/{NAME}/Pull",
                request_serializer=kv_pb2.PullRequest.SerializeToString,
                response_deserializer=decode_pull,
            ),
            f"KV at {address}",
        )


class _GrpcLink(Generic[Out_contra, In_co]):
    def __init__(self, method: grpc.aio.StreamStreamMultiCallable[Any, Any], peer: str) -> None:
        self._peer = peer
        self._call: grpc.aio.StreamStreamCall[Any, Any] = method(metadata=outgoing())

    async def send(self, message: Out_contra) -> None:
        with stream_errors(self._peer):
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                await self._raise_status()

    async def receive(self) -> In_co:
        with stream_errors(self._peer):
            answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise UnavailableError(f"{self._peer} ended the stream")
        return cast("In_co", answer)

    def close(self) -> None:
        self._call.cancel()

    async def _raise_status(self) -> None:
        call = self._call
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )


@contextmanager
def stream_errors(peer: str) -> Iterator[None]:
    """As `rpc_errors`, but a stream that broke is UnavailableError, whatever its status; the peer's own error stays."""
    try:
        with rpc_errors(peer):
            yield
    except TriptychError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError) and DETAILS_KEY not in dict(cause.trailing_metadata() or ()):
            raise UnavailableError(error.message) from cause
        raise
