"""One try of a job on one pair of workers: calls to decode, prefill and encoders that end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc

from common.rpc.channels import Channels
from common.rpc.instance import instance_metadata
from common.tracing import begin, inside, outgoing
from services.router.figures.account import Account
from services.router.job import Job
from services.router.placing.ledger import Ledger
from services.router.placing.placement import Route
from services.router.running.calls import Trouble
from services.router.running.encoding import Encoding
from services.router.running.failover import Failure
from services.router.running.prefill_call import call_prefill
from triptych.errors import InternalError, TriptychError, UnavailableError
from triptych.status import is_cancelled
from triptych.v1.decode_pb2 import DecodeRequest, DecodeResponse
from triptych.v1.decode_pb2_grpc import DecodeServiceStub
from triptych.v1.kv_pb2 import KvTicket
from triptych.v1.prefill_pb2 import ImageReady, PrefillBegin

SETTLE_S = 5.0
log = logging.getLogger(__name__)


class Attempt:
    """`open`, then `read` until finished, then `settle`; `close` always. The first failing stage fails the attempt."""

    def __init__(
        self,
        job: Job,
        route: Route,
        encoding: Encoding,
        channels: Channels,
        ledger: Ledger,
        account: Account,
        trouble: Trouble,
    ) -> None:
        self._job, self._route, self._encoding, self._trouble = job, route, encoding, trouble
        self._channels, self._account = channels, account
        self.span = begin("attempt", prefill=route.prefill.instance_id, decode=route.decode.instance_id)
        self._ready: asyncio.Queue[ImageReady | None] = asyncio.Queue()
        self._stages: set[asyncio.Task[None]] = set()
        self._decode: Any = None
        self._early: DecodeResponse | None = None
        self._failed: BaseException | None = None
        self._owned = False
        self._decode_booking = ledger.book(route.decode.instance_id, job.most_tokens)
        self._prefill_booking = ledger.book(route.prefill.instance_id, route.uncached_tokens)

    @property
    def suspects(self) -> set[str]:
        """Workers that the next attempt should do without; of several that it could have been, all."""
        if self._trouble.lost:
            return self._trouble.lost
        if self._trouble.stage == "encode":
            return self._trouble.suspects
        # A dead prefill worker can look like a failing decode worker, and the other way round.
        return {self._route.decode.instance_id, self._route.prefill.instance_id}

    def failure(self, error: TriptychError) -> Failure:
        """What made the attempt fail."""
        return Failure(error, self._trouble.stage or "decode", frozenset(self._trouble.lost))

    async def open(self) -> None:
        """Start all stages; returns once decode has reserved room and prefill was told where."""
        if self._job.images:
            self._start(self._encoding.run(self._ready.put_nowait))
        job, decode = self._job, self._route.decode
        request = DecodeRequest(request_id=job.request_id, prompt=job.prompt, sampling=job.sampling)
        stub = DecodeServiceStub(self._channels.get(decode.address))
        metadata = instance_metadata(decode.instance_id) + outgoing(self.span)
        self._decode = stub.Decode(request, timeout=job.remaining_s(), metadata=metadata)
        event = await self.read()
        if event.HasField("ticket"):
            self._start(self._prefill(event.ticket))
        elif event.HasField("finished") and job.prompt.generated:
            # What the client has was all there is.
            self._early = event
        else:
            raise InternalError("decode answered without a ticket")

    async def read(self) -> DecodeResponse:
        """The next event of decode; raises the error of whichever stage failed first."""
        if self._early is not None:
            return self._early
        with self._trouble.watching("decode", self._route.decode):
            event = await self._read()
        if event is grpc.aio.EOF:
            raise UnavailableError("decode ended its stream without a finish")
        self._owned = self._owned or event.HasField("tokens")
        return event  # type: ignore[no-any-return]

    async def settle(self) -> None:
        """After the last token wanted: wait a moment for prefill's account, which is on its way if it was called."""
        if self._stages and self._early is None:
            await asyncio.wait(self._stages, timeout=SETTLE_S)

    async def close(self) -> None:
        """Cancel what still runs, on every worker; twice is harmless."""
        self._decode_booking.release()
        self._prefill_booking.release()
        self._ready.put_nowait(None)
        if self._decode is not None:
            self._decode.cancel()
        stages = list(self._stages)
        for stage in stages:
            stage.cancel()
        try:
            await asyncio.gather(*stages, return_exceptions=True)
        finally:
            if self.span.is_recording():
                self.span.end()

    def _start(self, stage: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(stage, context=inside(self.span))
        self._stages.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, stage: asyncio.Task[None]) -> None:
        """A stage that failed takes decode with it, unless decode has everything it needs."""
        self._stages.discard(stage)
        if stage.cancelled() or (error := stage.exception()) is None:
            return
        if self._owned:
            # What is lost is the account of the stage.
            log.warning("a stage of request %s failed after its work: %s", self._job.request_id, error)
        else:
            self._failed = self._failed or error
            self._decode.cancel()

    async def _read(self) -> Any:
        try:
            return await self._decode.read()
        except asyncio.CancelledError:
            if self._failed is None or is_cancelled():
                raise
            raise self._failed from None

    async def _prefill(self, ticket: KvTicket) -> None:
        self._account.prefill_opened()
        job, prefill = self._job, self._route.prefill
        pictures = self._pictures() if job.images else None
        metadata = instance_metadata(prefill.instance_id) + outgoing()
        channel = self._channels.get(prefill.address)
        call = call_prefill(channel, self._begin(ticket), pictures, timeout=job.remaining_s(), metadata=metadata)
        try:
            with self._trouble.watching("prefill", prefill):
                self._account.prefilled(await call)
        finally:
            # gRPC keeps waiting for the next request of a call that has failed; this ends the stream of them.
            self._ready.put_nowait(None)
            self._prefill_booking.release()

    def _begin(self, ticket: KvTicket) -> PrefillBegin:
        job = self._job
        return PrefillBegin(
            request_id=job.request_id,
            prompt=job.prompt,
            sampling=job.sampling,
            ticket=ticket,
            peers=self._route.peers,
        )

    async def _pictures(self) -> AsyncIterator[ImageReady]:
        for _ in self._job.images:
            ready = await self._ready.get()
            if ready is None:
                return
            yield ready
