"""Push streams for tests: an in-memory twin of the gRPC one, and one that fails at named points."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from common.kv.frames import Frame, PushFrame, decode_push, encode
from common.kv.links import Link, Links
from common.kv.receiver import PushReceiver, Target
from triptych.errors import RequestCancelledError, TriptychError, UnavailableError
from triptych.v1 import kv_pb2

FaultName = Literal["drop", "duplicate", "corrupt", "fail", "delay", "pause", "lose_ack"]


class MemoryLinks:
    """Streams to a receiver in the same process, by address."""

    def __init__(self, **targets: Target) -> None:
        self._targets = targets

    def open(self, address: str) -> Link:
        """A stream with room for one message each way."""
        return MemoryLink(self._targets[address])


class MemoryLink:
    """Messages are encoded and decoded, so nothing is shared by accident."""

    def __init__(self, target: Target) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._answers: asyncio.Queue[kv_pb2.PushResponse | TriptychError] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._serve(target))

    async def send(self, frame: PushFrame) -> None:
        """See `Link`."""
        await self._frames.put(encode(frame))

    async def receive(self) -> kv_pb2.PushResponse:
        """See `Link`."""
        answer = await self._answers.get()
        if isinstance(answer, TriptychError):
            raise answer
        return answer

    def close(self) -> None:
        """See `Link`."""
        self._task.cancel()
        self._answers.put_nowait(RequestCancelledError("the stream was closed"))

    async def _serve(self, target: Target) -> None:
        try:
            async for answer in PushReceiver(target).run(self._sent()):
                self._answers.put_nowait(answer)
        except TriptychError as error:
            self._answers.put_nowait(error)

    async def _sent(self) -> AsyncIterator[PushFrame]:
        while True:
            yield decode_push(await self._frames.get())


@dataclass
class Fault:
    """What happens to the `nth` chunk, counted from 1 over all streams, and the `times - 1` after it."""

    name: FaultName
    nth: int = 1
    times: int = 1
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)


class FaultyLinks:
    """Wraps real streams; `chunks` counts those sent, `streams` those opened, `seen` is every message's kind."""

    def __init__(self, inner: Links, *faults: Fault, seen: list[str | None] | None = None) -> None:
        self.inner = inner
        self.faults = list(faults)
        self.seen = [] if seen is None else seen
        self.chunks = 0
        self.streams = 0
        self._counted = asyncio.Condition()

    def open(self, address: str) -> Link:
        """A stream with the faults."""
        self.streams += 1
        return _FaultyLink(self, self.inner.open(address))

    async def count(self) -> None:
        """One more chunk is sent."""
        async with self._counted:
            self.chunks += 1
            self._counted.notify_all()

    async def sent(self, chunks: int) -> None:
        """Wait until so many were sent."""
        async with self._counted:
            await self._counted.wait_for(lambda: self.chunks >= chunks)

    def due(self) -> Fault | None:
        """The fault of the chunk sent last."""
        hits = (fault for fault in self.faults if fault.nth <= self.chunks < fault.nth + fault.times)
        return next((fault for fault in hits if fault.name != "lose_ack"), None)

    def take(self, name: FaultName) -> bool:
        """True once for each time a fault of that name is wanted."""
        for fault in self.faults:
            if fault.name == name and fault.times > 0:
                fault.times -= 1
                return True
        return False


class _FaultyLink:
    def __init__(self, plan: FaultyLinks, inner: Link) -> None:
        self._plan = plan
        self._inner = inner
        self._broken = False
        self._held: list[PushFrame] = []

    async def send(self, frame: PushFrame) -> None:
        fault = None
        self._plan.seen.append(frame.kind)
        if frame.kind == "chunk":
            await self._plan.count()
            fault = self._plan.due()
        if fault is not None:
            await self._hit(fault, frame)
            return
        await self._inner.send(frame)
        while self._held:
            await self._inner.send(self._held.pop())

    async def receive(self) -> kv_pb2.PushResponse:
        answer = await self._receive()
        if answer.HasField("acknowledged") and self._plan.take("lose_ack"):
            self._break()
        return answer if not self._broken else await self._receive()

    def close(self) -> None:
        self._inner.close()

    async def _receive(self) -> kv_pb2.PushResponse:
        try:
            answer = await self._inner.receive()
        except TriptychError:
            if not self._broken:
                raise
        if self._broken:
            raise UnavailableError("the stream broke")
        return answer

    async def _hit(self, fault: Fault, frame: PushFrame) -> None:
        if fault.name == "pause":
            fault.reached.set()
            await fault.resume.wait()
            await self._inner.send(frame)
        elif fault.name == "fail":
            self._break()
            raise UnavailableError("the stream broke")
        elif fault.name == "delay":
            self._held.append(frame)
        else:
            for each in {"drop": [], "duplicate": [frame, frame], "corrupt": [_corrupt(frame)]}[fault.name]:
                await self._inner.send(each)

    def _break(self) -> None:
        self._broken = True
        self._inner.close()


def _corrupt(frame: PushFrame) -> PushFrame:
    """One bit is wrong: of the payload, or of the checksum of a payload that lies elsewhere."""
    if frame.payload:
        data = bytearray(b"".join(frame.payload))
        data[len(data) // 2] ^= 4
        return Frame(frame.message, (memoryview(data),))
    chunk = kv_pb2.KvChunk()
    chunk.CopyFrom(frame.message.chunk)
    chunk.crc32 ^= 4
    return Frame(kv_pb2.PushRequest(chunk=chunk))
