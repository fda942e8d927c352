"""PrefillService on the wire: one call is one prompt, from `begin` to decode's acknowledgement."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from common.kv.tally import Tally
from common.tracing import Span, span
from common.worker.prompts import prepare_grammar, to_generated
from common.worker.stage import Site
from services.prefill.delivery import Deliveries
from services.prefill.embeddings import EmbeddingSource
from services.prefill.engine import PrefillEngine
from services.prefill.images import ImageFeed
from services.prefill.job import Job
from services.prefill.puller import Puller
from services.prefill.tasks import unless_failed
from triptych.errors import InvalidArgumentError
from triptych.v1 import prefill_pb2, prefill_pb2_grpc

FULL_NAME = "triptych.v1.PrefillService"


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """Ties a call to a job, its images and its transfer."""

    def __init__(
        self,
        engine: PrefillEngine,
        site: Site,
        source: EmbeddingSource,
        puller: Puller,
        deliveries: Deliveries,
        tally: Tally,
    ) -> None:
        self._engine, self._site, self._tally = engine, site, tally
        self._source = source
        self._puller = puller
        self._deliveries = deliveries

    async def Prefill(
        self,
        request_iterator: AsyncIterator[prefill_pb2.PrefillRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> prefill_pb2.PrefillResponse:
        """Compute and deliver one prompt; everything is freed however the call ends."""
        begin = await _begin(request_iterator)
        length, images = len(begin.prompt.token_ids), len(begin.prompt.images)
        feed = ImageFeed(self._engine, self._source, begin)
        with span("prefill", request_id=begin.request_id, prompt_tokens=length, images=images) as current:
            try:
                account = await self._run(begin, feed, request_iterator, current)
            finally:
                await feed.close()
            current.set_attributes({field.name: value for field, value in account.ListFields()})
        return account

    async def _run(
        self,
        begin: prefill_pb2.PrefillBegin,
        feed: ImageFeed,
        requests: AsyncIterator[prefill_pb2.PrefillRequest],
        current: Span,
    ) -> prefill_pb2.PrefillResponse:
        await prepare_grammar(begin.sampling, self._site.parts)
        sequence, delivery, has_blocks = self._deliveries.open(begin)
        job = Job(sequence, delivery, has_blocks, pulling=not has_blocks, span=current)
        try:
            self._engine.submit(job)
            feeding = feed.follow(job, requests)
            pulling = self._puller.pull(job, begin.ticket, begin.peers)
            keeping = self._engine.keep_lease(job, begin.ticket.lease_ms / 1000)
            token = await unless_failed(job.first, feeding, pulling, keeping, delivery.acknowledged())
            await delivery.finish(to_generated(token))
            return self._noted(job)
        finally:
            delivery.abort()
            self._engine.release(job)

    def _noted(self, job: Job) -> prefill_pb2.PrefillResponse:
        account, times = _account(job), self._site.metrics.stages
        self._tally.note("prefill_to_decode", job.delivery.path, account.transfer_bytes)
        times.note("prefill", "queue", account.queue_ns)
        times.note("prefill", "run", account.compute_ns)
        times.note("prefill", "transfer", account.transfer_ns)
        return account


async def _begin(messages: AsyncIterator[prefill_pb2.PrefillRequest]) -> prefill_pb2.PrefillBegin:
    async for message in messages:
        if message.WhichOneof("message") == "begin":
            return message.begin
        break
    raise InvalidArgumentError("the first message must be `begin`", param="begin")


def _account(job: Job) -> prefill_pb2.PrefillResponse:
    read = job.cached_tokens + job.pulled_tokens
    return prefill_pb2.PrefillResponse(
        computed_tokens=job.sequence.num_given - read,
        cache_read_tokens=read,
        cache_creation_tokens=max(0, job.cacheable - read),
        pulled_tokens=job.pulled_tokens,
        queue_ns=job.started_ns - job.submitted_ns,
        compute_ns=job.compute_ns,
        transfer_ns=time.monotonic_ns() - job.finished_ns,
        transfer_bytes=job.delivery.sent_bytes,
    )
