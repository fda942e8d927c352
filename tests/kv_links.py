"""KV streams for tests: in-memory twins of the gRPC ones, and such that fail at named points."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from common.kv.frames import Frame, Message, PullFrame, PushFrame, decode_pull, decode_push, encode
from common.kv.links import Links, PullLink, PushLink
from common.kv.receiver import PushReceiver, Target
from common.kv.serving import Shelf, serve_pull
from triptych.errors import RequestCancelledError, TriptychError, UnavailableError
from triptych.v1 import kv_pb2

FaultName = Literal["drop", "duplicate", "corrupt", "fail", "delay", "pause", "lose_ack"]
Out = TypeVar("Out", PushFrame, kv_pb2.PullRequest)
In = TypeVar("In", PullFrame, kv_pb2.PushResponse)


class MemoryLinks:
    """Streams to a receiver, or from a shelf, in the same process; the address does not matter."""

    def __init__(self, target: Target | None = None, shelf: Shelf | None = None) -> None:
        self._target = target
        self._shelf = shelf

    def push(self, address: str) -> PushLink:
        """A stream with room for one message each way; messages are encoded, so nothing is shared by accident."""
        target = self._target
        assert target is not None

        def serve(sent: AsyncIterator[PushFrame]) -> AsyncGenerator[kv_pb2.PushResponse, None]:
            return PushReceiver(target).run(decode_push(encode(frame)) async for frame in sent)

        return _MemoryLink(serve)

    def pull(self, address: str) -> PullLink:
        """As `push`."""
        shelf = self._shelf
        assert shelf is not None

        async def serve(sent: AsyncIterator[kv_pb2.PullRequest]) -> AsyncGenerator[PullFrame, None]:
            async with aclosing(serve_pull(sent, shelf)) as frames:
                async for frame in frames:
                    yield decode_pull(encode(frame))

        return _MemoryLink(serve)


class _MemoryLink(Generic[Out, In]):
    def __init__(self, serve: Callable[[AsyncIterator[Out]], AsyncGenerator[In, None]]) -> None:
        self._sent: asyncio.Queue[Out] = asyncio.Queue(1)
        self._answers: asyncio.Queue[In | TriptychError] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._run(serve))

    async def send(self, message: Out) -> None:
        await self._sent.put(message)

    async def receive(self) -> In:
        answer = await self._answers.get()
        if isinstance(answer, TriptychError):
            raise answer
        return answer

    def close(self) -> None:
        self._task.cancel()
        self._answers.put_nowait(RequestCancelledError("the stream was closed"))

    async def _run(self, serve: Callable[[AsyncIterator[Out]], AsyncGenerator[In, None]]) -> None:
        try:
            async with aclosing(serve(self._messages())) as answers:
                async for answer in answers:
                    self._answers.put_nowait(answer)
        except TriptychError as error:
            self._answers.put_nowait(error)

    async def _messages(self) -> AsyncGenerator[Out, None]:
        while True:
            yield await self._sent.get()


@dataclass
class Fault:
    """What happens to the `nth` chunk, counted from 1 over all streams, and the `times - 1` after it.

    `hits` counts how often it has happened: a test that does not look there may have tested nothing. With `way` only
    streams of that kind are hit.
    """

    name: FaultName
    nth: int = 1
    times: int = 1
    hits: int = 0
    way: Literal["push", "pull", ""] = ""
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

    def push(self, address: str) -> PushLink:
        """A stream with the faults."""
        self.streams += 1
        return _FaultyPush(self, self.inner.push(address))

    def pull(self, address: str) -> PullLink:
        """A stream with the faults."""
        self.streams += 1
        return _FaultyPull(self, self.inner.pull(address))

    async def count(self, kind: str | None, way: str) -> Fault | None:
        """One more message is under way; the fault that hits it."""
        self.seen.append(kind)
        if kind != "chunk":
            return None
        async with self._counted:
            self.chunks += 1
            self._counted.notify_all()
        hits = (fault for fault in self.faults if fault.nth <= self.chunks < fault.nth + fault.times)
        fault = next((fault for fault in hits if fault.name != "lose_ack" and fault.way in ("", way)), None)
        if fault is not None:
            fault.hits += 1
        return fault

    async def sent(self, chunks: int) -> None:
        """Wait until so many were sent."""
        async with self._counted:
            await self._counted.wait_for(lambda: self.chunks >= chunks)

    def lose_ack(self) -> bool:
        """True once for each acknowledgement that is to be lost."""
        for fault in self.faults:
            if fault.name == "lose_ack" and fault.hits < fault.times:
                fault.hits += 1
                return True
        return False


class _FaultyPush:
    def __init__(self, plan: FaultyLinks, inner: PushLink) -> None:
        self._plan = plan
        self._inner = inner
        self._broken = False
        self._held: list[PushFrame] = []

    async def send(self, message: PushFrame) -> None:
        fault = await self._plan.count(message.kind, "push")
        for frame in [message] if fault is None else await self._hit(fault, message):
            await self._inner.send(frame)
        while self._held and fault is None:
            await self._inner.send(self._held.pop())

    async def receive(self) -> kv_pb2.PushResponse:
        answer = await self._receive()
        if answer.HasField("acknowledged") and self._plan.lose_ack():
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

    async def _hit(self, fault: Fault, frame: PushFrame) -> list[PushFrame]:
        if fault.name == "fail":
            self._break()
            raise UnavailableError("the stream broke")
        if fault.name == "delay":
            self._held.append(frame)
            return []
        return await _changed(fault, frame)

    def _break(self) -> None:
        self._broken = True
        self._inner.close()


class _FaultyPull:
    def __init__(self, plan: FaultyLinks, inner: PullLink) -> None:
        self._plan = plan
        self._inner = inner
        self._next: list[PullFrame] = []
        self._held: list[PullFrame] = []

    async def send(self, message: kv_pb2.PullRequest) -> None:
        if message.HasField("acknowledged") and self._plan.lose_ack():
            self._inner.close()
            return
        await self._inner.send(message)

    async def receive(self) -> PullFrame:
        while not self._next:
            frame = await self._inner.receive()
            fault = await self._plan.count(frame.kind, "pull")
            self._next += [frame] if fault is None else await self._hit(fault, frame)
            if fault is None:
                self._next, self._held = self._held + self._next, []
        return self._next.pop(0)

    def close(self) -> None:
        self._inner.close()

    async def _hit(self, fault: Fault, frame: PullFrame) -> list[PullFrame]:
        if fault.name == "fail":
            self._inner.close()
            raise UnavailableError("the stream broke")
        if fault.name == "delay":
            self._held.append(frame)
            return []
        return await _changed(fault, frame)


async def _changed(fault: Fault, frame: Frame[Message]) -> list[Frame[Message]]:
    """What arrives instead of a frame."""
    if fault.name == "pause":
        fault.reached.set()
        await fault.resume.wait()
        return [frame]
    return {"drop": [], "duplicate": [frame, frame], "corrupt": [_corrupt(frame)]}[fault.name]


def _corrupt(frame: Frame[Message]) -> Frame[Message]:
    """One bit is wrong: of the payload, or of the checksum of a payload that lies elsewhere."""
    message = type(frame.message)()
    message.CopyFrom(frame.message)
    if not frame.payload:
        message.chunk.xxh3 ^= 4
        return Frame(message)
    data = bytearray(b"".join(frame.payload))
    data[len(data) // 2] ^= 4
    return Frame(message, (memoryview(data),))
