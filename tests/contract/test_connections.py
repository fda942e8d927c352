"""Clients that only cost something: they send slowly, never end, do not read, or are too many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from common.rpc import address
from services.router.http import server
from tests.contract.router_bench import Bench, eventually, open_bench
from tests.contract.test_router_grpc import request
from triptych.errors import DeadlineExceededError
from triptych.status import rpc_errors
from triptych.v1.router_pb2 import PutImageRequest
from triptych.v1.router_pb2_grpc import RouterServiceStub
from triptych.v1.types_pb2 import SamplingParams

WORKERS = ("encoder", "prefill", "decode")
HEAD = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
STREAM = b'{"messages": [{"role": "user", "content": "hi"}], "stream": true, "logprobs": true, "top_logprobs": 20}'


def post(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


async def connect(bench: Bench, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.router.http_port)
    writer.write(first)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError):
        async with asyncio.timeout(5):
            while await reader.read(1000):
                pass
    return True


async def test_a_body_that_never_ends_is_not_waited_for(valkey_url: str) -> None:
    async with open_bench(valkey_url, (), request_timeout_s=0.3) as bench:
        reader, writer = await connect(bench, post("/v1/chat/completions", 100) + b"{")
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert answer.startswith(b"HTTP/1.1 504 ")


async def test_headers_and_uploads_that_do_not_come_are_not_waited_for(valkey_url: str) -> None:
    async def nothing() -> AsyncIterator[PutImageRequest]:
        await asyncio.Event().wait()
        yield PutImageRequest()

    async with open_bench(valkey_url, (), upload_timeout_s=0.3) as bench:
        for before, half in ((b"", b""), (b"", HEAD), (HEAD + b"\r\n", HEAD)):
            reader, writer = await connect(bench, before)
            if before:
                await reader.readuntil(b"}")
            writer.write(half)
            assert await ended(reader)
            writer.close()
        with pytest.raises(DeadlineExceededError), rpc_errors():
            await bench.stub.PutImage(nothing())
        assert (await bench.http.get("/healthz")).status_code == 200


async def refused(bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose request was refused before its body came, which then came."""
    reader, writer = await connect(bench, post("/tokenize", 200_000))
    assert b" 413 " in await reader.readuntil(b"}}")
    writer.write(b"x" * 200_000)
    return reader, writer


async def streaming(bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is being answered."""
    bench.say("one two three")
    bench.fleet.script.pause_after = 1
    reader, writer = await connect(bench, post("/v1/chat/completions", len(STREAM)) + STREAM)
    await reader.readuntil(b"data: ")
    return reader, writer


async def test_a_body_that_was_refused_early_does_not_end_the_connection(valkey_url: str) -> None:
    async with open_bench(valkey_url, (), max_body_size=1000) as bench:
        reader, writer = await refused(bench)
        writer.write(HEAD + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"}")
        writer.close()


@pytest.mark.parametrize("begin", [connect, refused, streaming])
async def test_headers_without_an_end_are_not_read(valkey_url: str, begin: Any) -> None:
    async with open_bench(valkey_url, WORKERS, max_body_size=1000) as bench:
        _, writer = await begin(bench)
        writer.write(HEAD)
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(b"x: " + b"y" * 10_000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        assert writer.transport.is_closing()


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel takes in for a client that does not read is little, over HTTP."""

    def listen(host: str, port: int) -> socket.socket:
        listener = real(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    real = address.listen
    monkeypatch.setattr(server, "listen", listen)


async def idle(bench: Bench) -> None:
    """A request was begun, and nothing of it is left."""
    turnstile, metrics = bench.router.routing.turnstile, 'requests_total{status="cancelled"} 1.0'
    while metrics not in (await bench.http.get("/metrics")).text:
        pass
    assert (turnstile.running, turnstile.taken) == (0, 0)
    await eventually(lambda: bench.router.ledger.total == 0 and bench.fleet.running == 0)


@pytest.mark.usefixtures("small_buffers")
async def test_who_does_not_read_an_answer_over_http_loses_it(valkey_url: str) -> None:
    loop = asyncio.get_running_loop()
    async with open_bench(valkey_url, WORKERS, send_timeout_s=0.2) as bench:
        bench.say("word " * 300)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", bench.router.http_port))
            await loop.sock_sendall(client, post("/v1/chat/completions", len(STREAM)) + STREAM)
            await idle(bench)


async def test_who_does_not_read_an_answer_over_grpc_loses_it(valkey_url: str) -> None:
    async with open_bench(valkey_url, WORKERS, send_timeout_s=0.2) as bench:
        bench.say("word " * 600)
        # Else the client takes in more and more, whether somebody reads or not.
        options = [("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{bench.router.port}", options) as channel:
            call = RouterServiceStub(channel).Generate(request(sampling=SamplingParams(top_logprobs=20)))
            await idle(bench)
            call.cancel()


async def test_connections_beyond_the_bound_are_closed(valkey_url: str) -> None:
    async with open_bench(valkey_url, (), max_http_connections=2) as bench:
        (one, writer), (other, unwanted) = await connect(bench), await connect(bench)
        assert await ended(other)
        writer.write(HEAD + b"\r\n")
        assert b" 200 " in await one.readuntil(b"}")
        assert 'router_shed_total{reason="connections"} 1.0' in (await bench.http.get("/metrics")).text
        for each in (writer, unwanted):
            each.close()
