"""The scaffolding of every service: drain, health, error mapping and silence, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.rpc.server import NOT_SERVING, SERVING, RpcServer
from common.rpc.worker import WorkerServicer
from triptych.channel import CHANNEL_OPTIONS, SERVER_OPTIONS, open_channel
from triptych.errors import ConfigError, ContextLengthError, ImagesNotFoundError, InternalError, TriptychError
from triptych.status import rpc_errors
from triptych.v1 import decode_pb2, decode_pb2_grpc, worker_pb2, worker_pb2_grpc

DECODE = "triptych.v1.DecodeService"
WORKER = "triptych.v1.WorkerService"


class Decode(decode_pb2_grpc.DecodeServiceServicer):
    """Sends one event, waits for `go`, sends another; fails with `error` instead when there is one."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.ended = asyncio.Event()

    async def Decode(self, request: Any, context: Any) -> AsyncIterator[decode_pb2.DecodeResponse]:
        try:
            yield decode_pb2.DecodeResponse()
            if self.error is not None:
                raise self.error
            await self.go.wait()
            yield decode_pb2.DecodeResponse()
        finally:
            self.ended.set()


@asynccontextmanager
async def serving(decode: Decode, error: Exception | None = None) -> AsyncIterator[tuple[RpcServer, grpc.aio.Channel]]:
    server = RpcServer("127.0.0.1", 0)
    server.add(decode_pb2_grpc.add_DecodeServiceServicer_to_server, decode, DECODE)

    def fail() -> worker_pb2.WorkerInfo:
        raise error or InternalError("unused")

    worker = WorkerServicer(fail, worker_pb2.GetLoadResponse, lambda: None)
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker, WORKER)
    port = await server.start()
    await server.set_ready(True)
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield server, channel
    await server.drain(0.0)


async def health(channel: grpc.aio.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    status: int = answer.status
    return status


async def test_drain_lets_a_stream_finish() -> None:
    decode = Decode()
    async with serving(decode) as (server, channel):
        call = decode_pb2_grpc.DecodeServiceStub(channel).Decode(decode_pb2.DecodeRequest())
        await call.read()
        draining = asyncio.create_task(server.drain(grace_s=10.0))
        await asyncio.sleep(0.05)
        decode.go.set()
        assert await call.read() is not grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
        await draining


async def test_grace_is_bounded() -> None:
    decode = Decode()
    async with serving(decode) as (server, channel):
        call = decode_pb2_grpc.DecodeServiceStub(channel).Decode(decode_pb2.DecodeRequest())
        await call.read()
        async with asyncio.timeout(5):
            await server.drain(grace_s=0.1)
            # The handler is told, so that it frees what it holds.
            await decode.ended.wait()


async def test_readiness_goes_before_the_server_does() -> None:
    """J06."""
    async with serving(Decode()) as (server, channel):
        assert [await health(channel, name) for name in ("", DECODE, WORKER)] == [SERVING] * 3
        draining = asyncio.create_task(server.drain(grace_s=0.0, notice_s=60))
        async with asyncio.timeout(20):
            while await health(channel, DECODE) != NOT_SERVING:  # noqa: ASYNC110 nothing tells us
                await asyncio.sleep(0.01)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)


async def test_reflection_lists_every_service() -> None:
    async with serving(Decode()) as (_, channel):
        untyped: Any = channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(untyped)
        request: Any = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    listed = {service.name for service in answers[0].list_services_response.service}
    assert {DECODE, WORKER, "grpc.health.v1.Health"} <= listed


@pytest.mark.parametrize(
    "error",
    [ContextLengthError("too long: 9 of 8", param="messages"), ImagesNotFoundError(["ab" * 32], param="images[0]")],
)
async def test_our_errors_arrive_as_they_were_raised(error: TriptychError) -> None:
    async with serving(Decode(), error) as (_, channel):
        with pytest.raises(type(error)) as caught, rpc_errors():
            await worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(worker_pb2.GetInfoRequest())
    assert (caught.value.message, caught.value.param) == (error.message, error.param)
    assert getattr(caught.value, "digests", None) == getattr(error, "digests", None)


async def test_foreign_exceptions_tell_the_client_nothing() -> None:
    decode = Decode()
    decode.error = ZeroDivisionError("secret path")
    async with serving(decode) as (_, channel):
        call = decode_pb2_grpc.DecodeServiceStub(channel).Decode(decode_pb2.DecodeRequest())
        with pytest.raises(InternalError) as caught, rpc_errors():
            _ = [event async for event in call]
    assert "secret" not in caught.value.message and "ZeroDivision" not in caught.value.message


async def test_a_cancelled_stream_is_closed_at_once() -> None:
    decode = Decode()
    async with serving(decode) as (_, channel):
        call = decode_pb2_grpc.DecodeServiceStub(channel).Decode(decode_pb2.DecodeRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(2):
            await decode.ended.wait()


async def test_a_taken_port_is_one_sentence() -> None:
    async with serving(Decode()) as (server, _):
        second = RpcServer("127.0.0.1", server.port)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await second.start()


def test_server_tolerates_the_pings_of_its_clients() -> None:
    """J03: otherwise a silent prefill of a minute ends in GOAWAY too_many_pings."""
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0, "no number of pings is an offence"
    for limit in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        assert client[limit] == server[limit] > 4 * 2**20
