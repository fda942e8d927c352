"""KV transfers over real gRPC and real shared memory, within a process, between processes, and across a broken link."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from common.kv.links import GrpcLinks
from common.kv.sender import KvPush
from common.kv.staging import KvTransport
from common.kv.transport import Transport
from common.rpc.channels import Channels
from tests.kv_ends import FIRST, LAYOUT, Receiver, content, noisy_cache, prompt_of, serving
from tests.kv_process import digest
from triptych.errors import FailedPreconditionError, UnavailableError
from triptych.v1 import kv_pb2

BLOCKS = 64
SOURCE = noisy_cache(BLOCKS, seed=3)
FROM = list(range(BLOCKS))
TO = list(reversed(FROM))
CHUNK_BYTES = 4 * LAYOUT.bytes_per_layer_block


@asynccontextmanager
async def transport(mode: KvTransport) -> AsyncIterator[Transport]:
    channels = Channels()
    yield Transport(GrpcLinks(channels), LAYOUT, mode, CHUNK_BYTES)
    await channels.close()


async def deliver(ticket: kv_pb2.KvTicket, mode: KvTransport) -> Transport:
    async with transport(mode) as way:
        push = KvPush(SOURCE, ticket, prompt_of(FROM), way)
        for layer in range(LAYOUT.layers):
            push.layer_ready(layer, BLOCKS * LAYOUT.block_size)
        await push.finish(FIRST)
    return way


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_kv_arrives_exactly(mode: KvTransport) -> None:
    receiver = Receiver(BLOCKS)
    async with serving(receiver) as address:
        await deliver(receiver.ticket(TO, address=address), mode)
    assert content(receiver.cache, TO) == content(SOURCE, FROM)
    assert len(receiver.delivered) == 1


class Cutter:
    """A TCP link that is cut, both ways, after it has carried so many bytes; later connections hold."""

    def __init__(self, target: str, cut_after: int) -> None:
        self._target = target.split(":")
        self._left = cut_after
        self.connections = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        to_reader, to_writer = await asyncio.open_connection(self._target[0], int(self._target[1]))
        ways = [asyncio.create_task(self._pump(*way)) for way in ((reader, to_writer), (to_reader, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, to_writer):
            end.transport.abort()
        await asyncio.wait(ways)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 14):
                self._left -= len(data)
                if self.connections == 1 and self._left < 0:
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            return


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.99])
async def test_cut_link_is_resumed(part: float) -> None:
    receiver = Receiver(BLOCKS)
    async with serving(receiver) as address:
        cutter = Cutter(address, int(part * BLOCKS * LAYOUT.bytes_per_block))
        async with cutter.running() as through:
            await deliver(receiver.ticket(TO, address=through), "grpc")
    assert cutter.connections == 2
    assert content(receiver.cache, TO) == content(SOURCE, FROM)
    assert len(receiver.delivered) == 1


async def test_nobody_at_the_address_is_unavailable() -> None:
    receiver = Receiver(BLOCKS)
    async with serving(receiver) as address:
        ticket = receiver.ticket(TO, address=address)
    with pytest.raises(UnavailableError):
        await deliver(ticket, "auto")


@asynccontextmanager
async def process(mode: KvTransport, *prefix: str) -> AsyncIterator[tuple[subprocess.Popen[str], kv_pb2.KvTicket]]:
    command = [*prefix, sys.executable, "-m", "tests.kv_process", mode, str(BLOCKS)]
    pipe = subprocess.PIPE
    child = await asyncio.to_thread(subprocess.Popen[str], command, stdin=pipe, stdout=pipe, text=True)
    assert child.stdin and child.stdout
    try:
        line = await asyncio.to_thread(child.stdout.readline)
        yield child, kv_pb2.KvTicket.FromString(bytes.fromhex(line))
    finally:
        child.stdin.close()
        await asyncio.to_thread(child.wait, 20)
        child.stdout.close()


async def report(child: subprocess.Popen[str]) -> list[str]:
    assert child.stdin and child.stdout
    child.stdin.write("\n")
    child.stdin.flush()
    return (await asyncio.to_thread(child.stdout.readline)).split()


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_between_processes(mode: KvTransport) -> None:
    async with process("auto") as (child, ticket):
        await deliver(ticket, mode)
        assert await report(child) == [digest(content(SOURCE, FROM)), "1"]


async def test_process_on_the_same_host_is_reached_by_shared_memory_by_itself() -> None:
    async with process("auto") as (_, ticket):
        way = await deliver(ticket, "auto")
        assert way.staging is not None
        used = [bytes(way.staging.view(slot, 64)) != bytes(64) for slot in range(way.staging.num_slots)]
        assert any(used)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs a process namespace of its own")
async def test_container_of_its_own_is_reached_by_grpc_by_itself() -> None:
    async with process("auto", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child") as (child, ticket):
        with pytest.raises(FailedPreconditionError, match="cannot map"):
            await deliver(ticket, "shm")
        await deliver(ticket, "auto")
        assert await report(child) == [digest(content(SOURCE, FROM)), "1"]


async def test_killed_receiver_ends_the_transfer_and_leaves_no_slot_taken() -> None:
    async with process("auto") as (child, ticket), transport("shm") as way:
        push = KvPush(SOURCE, ticket, prompt_of(FROM), way, answer_s=1.0)
        push.layer_ready(0, BLOCKS * LAYOUT.block_size)
        child.kill()
        push.ready(BLOCKS * LAYOUT.block_size)
        with pytest.raises(UnavailableError):
            await push.finish(FIRST)
        assert way.staging and way.staging.num_free == way.staging.num_slots
