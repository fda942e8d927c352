"""One try of a job on one pair of workers: calls to decode, prefill and encoders that end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc

from common.rpc.channels import Channels
from services.router.account import Account
from services.router.encoding import Encoding
from services.router.job import Job
from services.router.ledger import Ledger
from services.router.placement import Route
from triptych.errors import InternalError, TriptychError
from triptych.status import rpc_errors
from triptych.v1.decode_pb2 import DecodeRequest, DecodeResponse
from triptych.v1.decode_pb2_grpc import DecodeServiceStub
from triptych.v1.kv_pb2 import KvTicket
from triptych.v1.prefill_pb2 import ImageReady, PrefillBegin, PrefillRequest
from triptych.v1.prefill_pb2_grpc import PrefillServiceStub

SETTLE_S = 5.0
log = logging.getLogger(__name__)


class Attempt:
    """`open`, then `read` until finished, then `settle`; `close` always. The first failing stage fails the attempt."""

    def __init__(
        self, job: Job, route: Route, encoding: Encoding, channels: Channels, ledger: Ledger, account: Account
    ) -> None:
        self._job, self._route, self._encoding = job, route, encoding
        self._channels, self._account = channels, account
        self._ready: asyncio.Queue[ImageReady | None] = asyncio.Queue()
        self._stages: set[asyncio.Task[None]] = set()
        self._decode: Any = None
        self._owned = False
        size = job.prompt_tokens + job.sampling.max_tokens
        self._decode_booking = ledger.book(route.decode.instance_id, size)
        self._prefill_booking = ledger.book(route.prefill.instance_id, job.prompt_tokens)

    @property
    def instance_ids(self) -> set[str]:
        """The workers it uses."""
        return {self._route.decode.instance_id, self._route.prefill.instance_id, *self._encoding.instance_ids}

    async def open(self) -> None:
        """Start all stages; returns once decode has reserved room and prefill was told where."""
        self._start(self._encoding.run(self._ready.put_nowait))
        job = self._job
        request = DecodeRequest(request_id=job.request_id, prompt=job.prompt, sampling=job.sampling)
        stub = DecodeServiceStub(self._channels.get(self._route.decode.address))
        self._decode = stub.Decode(request, timeout=job.remaining_s())
        event = await self.read()
        if not event.HasField("ticket"):
            raise InternalError("decode answered without a ticket")
        self._start(self._prefill(event.ticket))

    async def read(self) -> DecodeResponse:
        """The next event of decode; raises the error of whichever stage failed first."""
        with rpc_errors("decode"):
            event = await self._watched(self._decode.read())
        if event is grpc.aio.EOF:
            raise InternalError("decode ended its stream without a finish")
        self._owned = self._owned or event.HasField("tokens")
        return event  # type: ignore[no-any-return]

    async def settle(self) -> None:
        """After the last token wanted: wait a moment for prefill's account, which is on its way."""
        if self._stages:
            await asyncio.wait(self._stages, timeout=SETTLE_S)

    async def close(self) -> None:
        """Cancel what still runs, on every worker; twice is harmless."""
        self._decode_booking.release()
        self._prefill_booking.release()
        self._ready.put_nowait(None)
        if self._decode is not None:
            self._decode.cancel()
        for stage in self._stages:
            stage.cancel()
        await asyncio.gather(*self._stages, return_exceptions=True)

    def _start(self, stage: Coroutine[Any, Any, None]) -> None:
        self._stages.add(asyncio.create_task(stage))

    async def _watched(self, reading: Coroutine[Any, Any, Any]) -> Any:
        read = asyncio.ensure_future(reading)
        try:
            while not read.done():
                await asyncio.wait({read, *self._stages}, return_when=asyncio.FIRST_COMPLETED)
                self._reap()
            return read.result()
        finally:
            read.cancel()
            # When a stage fails in the same moment nobody else asks what became of the read.
            await asyncio.gather(read, return_exceptions=True)

    def _reap(self) -> None:
        for stage in [stage for stage in self._stages if stage.done()]:
            self._stages.remove(stage)
            self._check(stage)

    def _check(self, stage: asyncio.Task[None]) -> None:
        try:
            stage.result()
        except TriptychError as error:
            if not self._owned:
                raise
            # Decode has everything it needs; what is lost is the account of the stage.
            log.warning("a stage of request %s failed after its work: %s", self._job.request_id, error.message)

    async def _prefill(self, ticket: KvTicket) -> None:
        self._account.prefill_opened()
        stub = PrefillServiceStub(self._channels.get(self._route.prefill.address))
        call = stub.Prefill(self._prefill_requests(ticket), timeout=self._job.remaining_s())
        try:
            with rpc_errors("prefill"):
                self._account.prefilled(await call)
        finally:
            # gRPC keeps waiting for the next request of a call that has failed; this ends the stream of them.
            self._ready.put_nowait(None)
            self._prefill_booking.release()

    async def _prefill_requests(self, ticket: KvTicket) -> AsyncIterator[PrefillRequest]:
        job = self._job
        begin = PrefillBegin(
            request_id=job.request_id,
            prompt=job.prompt,
            sampling=job.sampling,
            ticket=ticket,
            peers=self._route.peers,
        )
        yield PrefillRequest(begin=begin)
        for _ in job.images:
            ready = await self._ready.get()
            if ready is None:
                return
            yield PrefillRequest(image_ready=ready)
