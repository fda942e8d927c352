"""KV transfers over real gRPC and real shared memory, within a process, between processes, and across a broken link."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

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
async def links() -> AsyncIterator[GrpcLinks]:
    channels = Channels()
    yield GrpcLinks(channels)
    await channels.close()


async def deliver(ticket: kv_pb2.KvTicket, mode: KvTransport) -> Transport:
    way = Transport(LAYOUT, mode, CHUNK_BYTES)
    async with links() as streams:
        push = KvPush(SOURCE, ticket, prompt_of(FROM), streams, way)
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


class Peer:
    """A receiver in a process of its own; `ticket` is good for one transfer."""

    def __init__(self, *prefix: str) -> None:
        command = [*prefix, sys.executable, "-m", "tests.kv_process", "auto", str(BLOCKS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ticket = self._next_ticket()

    def report(self) -> list[str]:
        """A digest of the blocks and how often they were delivered; they are noise again afterwards."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = self._line().split()
        self.ticket = self._next_ticket()
        return found

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _next_ticket(self) -> kv_pb2.KvTicket:
        return kv_pb2.KvTicket.FromString(bytes.fromhex(self._line()))

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_between_processes(peer: Peer, mode: KvTransport) -> None:
    await deliver(peer.ticket, mode)
    assert await asyncio.to_thread(peer.report) == [digest(content(SOURCE, FROM)), "1"]


async def test_process_on_the_same_host_is_reached_by_shared_memory_by_itself(peer: Peer) -> None:
    way = await deliver(peer.ticket, "auto")
    assert await asyncio.to_thread(peer.report) == [digest(content(SOURCE, FROM)), "1"]
    assert way.staging is not None
    assert any(bytes(way.staging.view(slot, 64)) != bytes(64) for slot in range(way.staging.num_slots))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs a process namespace of its own")
async def test_container_of_its_own_is_reached_by_grpc_by_itself() -> None:
    prefix = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with closing(await asyncio.to_thread(Peer, *prefix)) as contained:
        with pytest.raises(FailedPreconditionError, match="cannot map"):
            await deliver(contained.ticket, "shm")
        await deliver(contained.ticket, "auto")
        assert await asyncio.to_thread(contained.report) == [digest(content(SOURCE, FROM)), "1"]


async def test_killed_receiver_ends_the_transfer_and_leaves_no_slot_taken() -> None:
    way = Transport(LAYOUT, "shm", CHUNK_BYTES)
    with closing(await asyncio.to_thread(Peer)) as doomed:
        async with links() as streams:
            push = KvPush(SOURCE, doomed.ticket, prompt_of(FROM), streams, way, answer_s=1.0)
            push.layer_ready(0, BLOCKS * LAYOUT.block_size)
            doomed.process.kill()
            push.ready(BLOCKS * LAYOUT.block_size)
            with pytest.raises(UnavailableError):
                await push.finish(FIRST)
    assert way.staging and way.staging.num_free == way.staging.num_slots
