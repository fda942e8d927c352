"""PrefillService on the wire: one call is one prompt, from `begin` to decode's acknowledgement."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from common.kv.sender import KvPush
from common.worker.process import Site
from common.worker.prompts import to_generated, to_sequence
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

    def __init__(self, engine: PrefillEngine, site: Site, images: ImageFeed, puller: Puller) -> None:
        self._engine = engine
        self._site = site
        self._images = images
        self._puller = puller

    async def Prefill(
        self,
        request_iterator: AsyncIterator[prefill_pb2.PrefillRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> prefill_pb2.PrefillResponse:
        """Compute and deliver one prompt; everything is freed however the call ends."""
        begin = await _begin(request_iterator)
        parts = self._site.parts
        sequence = to_sequence(begin.request_id, begin.prompt, begin.sampling, parts)
        push = KvPush(parts.cache, begin.ticket, sequence, self._site.channels)
        job = Job(sequence, push, pulling=True)
        try:
            self._engine.submit(job)
            feeding = self._images.follow(job, begin.prompt, request_iterator)
            pulling = self._puller.pull(job, begin.ticket, begin.peers)
            token = await unless_failed(job.first, feeding, pulling, push.acknowledged())
            await push.finish(to_generated(token))
        finally:
            push.abort()
            self._engine.release(job)
        return _account(job, parts.blocks.block_size)


async def _begin(messages: AsyncIterator[prefill_pb2.PrefillRequest]) -> prefill_pb2.PrefillBegin:
    async for message in messages:
        if message.WhichOneof("message") == "begin":
            return message.begin
        break
    raise InvalidArgumentError("the first message must be `begin`", param="begin")


def _account(job: Job, block_size: int) -> prefill_pb2.PrefillResponse:
    read = job.cached_tokens + job.pulled_tokens
    full_blocks = job.sequence.num_prompt // block_size
    return prefill_pb2.PrefillResponse(
        computed_tokens=job.sequence.num_prompt - read,
        cache_read_tokens=read,
        cache_creation_tokens=full_blocks * block_size - read,
        pulled_tokens=job.pulled_tokens,
        queue_ns=job.started_ns - job.submitted_ns,
        compute_ns=job.compute_ns,
        transfer_ns=time.monotonic_ns() - job.finished_ns,
        transfer_bytes=job.push.sent_bytes,
    )
