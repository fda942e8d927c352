"""The sending end of one stream, from its header to the acknowledgement."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from common.kv.frames import Frame, PushFrame
from common.kv.links import PushLink
from common.kv.outgoing import Outgoing
from common.kv.paths import Outbox
from common.kv.payload import SlabData
from common.kv.wire import Slab, chunk_of, slab_of
from triptych.errors import FailedPreconditionError, UnavailableError
from triptych.v1 import kv_pb2, types_pb2

ANSWER_S = 10.0
"""A receiver that answers nothing for as long, with chunks under way, is taken for gone."""

MAX_REPAIRS = 3
"""How often lost or damaged chunks of one stream are sent again."""


@dataclass(slots=True)
class Supply:
    """What there is to send, filled while the prompt is computed: KV, found by `data`, then the first token.

    `alive` asks for one sign of life, which keeps the receiver's lease while there is nothing else to send.
    """

    outgoing: Outgoing
    data: Callable[[Slab], SlabData]
    first: types_pb2.GeneratedToken | None = None
    alive: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    sent_bytes: int = 0


class PushSession:
    """Sends while credit lasts and listens at the same time.

    `lease_end` is when the receiver's lease ends if it answers nothing more and no sign of life is sent: the event
    loop's time in seconds.
    """

    def __init__(self, supply: Supply, link: PushLink, answer_s: float = ANSWER_S) -> None:
        self._supply = supply
        self._link = link
        self._answer_s = answer_s
        self._unanswered: deque[int] = deque()
        self._seq = 0
        self._credits = 0
        self._repairs = 0
        self._committed = False
        self._lease_s = math.inf
        self.lease_end = math.inf

    async def open(self, header: kv_pb2.PushHeader) -> kv_pb2.PushOpened | None:
        """Send the header; None when the transfer had been delivered before."""
        try:
            async with asyncio.timeout(self._answer_s):
                await self._link.send(Frame(kv_pb2.PushRequest(header=header)))
                answer = await self._link.receive()
        except TimeoutError as error:
            raise UnavailableError("the receiver does not answer") from error
        if answer.HasField("acknowledged"):
            return None
        self._credits = max(1, answer.opened.credits)
        self._lease_s = answer.opened.lease_ms / 1000
        self._renew()
        self._supply.outgoing.resend(map(slab_of, answer.opened.missing))
        return answer.opened

    async def run(self, outbox: Outbox) -> None:
        """Send until acknowledged. Raises what the receiver raises, or UnavailableError when the stream breaks."""
        self._outbox = outbox
        listening = asyncio.ensure_future(self._listen())
        sending = asyncio.ensure_future(self._send())
        try:
            await asyncio.wait((listening, sending), return_when=asyncio.FIRST_COMPLETED)
            # The receiver's own word first: a refusal also breaks the sending.
            await (listening if listening.done() else sending)
        finally:
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)
            outbox.close()

    async def _send(self) -> None:
        supply = self._supply
        while True:
            if len(self._unanswered) < self._credits and (slab := supply.outgoing.take()):
                await self._send_chunk(slab)
            elif supply.first is not None and not supply.outgoing and not self._committed:
                await self._commit(supply.first)
            elif supply.alive and not self._committed:
                await self._say_alive()
            else:
                supply.changed.clear()
                await supply.changed.wait()

    async def _send_chunk(self, slab: Slab) -> None:
        self._seq += 1
        frame = await self._outbox.pack(chunk_of(slab, self._seq), lambda: self._supply.data(slab))
        self._unanswered.append(self._seq)
        self._supply.sent_bytes += self._supply.outgoing.size_of(slab)
        await self._transmit(frame)

    async def _commit(self, first: types_pb2.GeneratedToken) -> None:
        self._committed = True
        await self._transmit(Frame(kv_pb2.PushRequest(first_token=kv_pb2.FirstToken(token=first))))

    async def _say_alive(self) -> None:
        self._supply.alive = False
        await self._link.send(Frame(kv_pb2.PushRequest(alive=kv_pb2.PushAlive())))
        self._renew()

    async def _transmit(self, frame: PushFrame) -> None:
        self._watch_answers()
        await self._link.send(frame)

    async def _listen(self) -> None:
        try:
            async with asyncio.timeout(None) as self._watch:
                while not self._heard(await self._link.receive()):
                    self._watch_answers()
        except TimeoutError as error:
            raise UnavailableError(f"no answer for {self._answer_s} s") from error

    def _watch_answers(self) -> None:
        waiting = self._unanswered or self._committed
        self._watch.reschedule(asyncio.get_running_loop().time() + self._answer_s if waiting else None)

    def _heard(self, answer: kv_pb2.PushResponse) -> bool:
        """Take an answer in; True when it is the acknowledgement."""
        if answer.HasField("received"):
            self._settle(answer.received.seq)
        elif answer.HasField("incomplete"):
            self._repair(answer.incomplete)
        self._renew()
        self._supply.changed.set()
        return answer.HasField("acknowledged")

    def _renew(self) -> None:
        self.lease_end = asyncio.get_running_loop().time() + self._lease_s

    def _settle(self, seq: int) -> None:
        while self._unanswered and self._unanswered[0] <= seq:
            self._unanswered.popleft()
        self._outbox.settle(seq)

    def _repair(self, incomplete: kv_pb2.PushIncomplete) -> None:
        self._repairs += 1
        if self._repairs > MAX_REPAIRS:
            raise FailedPreconditionError(f"KV still arrives damaged after {MAX_REPAIRS} repairs")
        self._committed = False
        # The stream keeps its order: what came before the first token was received by now, or never will be.
        self._settle(self._seq)
        self._supply.outgoing.resend(map(slab_of, incomplete.missing))
