"""DecodeService on the wire: message in, call, message out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from common.engine.sampler import SampledToken
from common.kv.reservations import Reservation
from common.kv.wire import layout_to_proto
from common.tracing import held
from common.worker.prompts import prepare_grammar, to_generated
from common.worker.stage import Site
from services.decode.engine import DecodeEngine
from services.decode.job import FinishReason
from services.decode.progress import Progress
from triptych.v1 import decode_pb2, decode_pb2_grpc, kv_pb2, types_pb2

FULL_NAME = "triptych.v1.DecodeService"
REASONS = {"stop": types_pb2.FINISH_REASON_STOP, "length": types_pb2.FINISH_REASON_LENGTH}


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Streams a job's events."""

    def __init__(self, engine: DecodeEngine, site: Site) -> None:
        self._engine = engine
        self._site = site

    async def Decode(
        self, request: decode_pb2.DecodeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Ticket, tokens, finish; everything is freed however the call ends."""
        length = len(request.prompt.token_ids)
        with held("decode", request_id=request.request_id, prompt_tokens=length) as current:
            await prepare_grammar(request.sampling, self._site.parts)
            job, progress = self._engine.submit(request), Progress(current, self._site.metrics.stages)
            # Also when the call dies while a message is being written, where the generator itself is not told.
            context.add_done_callback(lambda _: self._engine.release(job))  # type: ignore[arg-type]  # the stub's type
            try:
                async for event in job.events():
                    progress.note(event)
                    yield self._response(event)
            finally:
                self._engine.release(job)
                progress.close()

    def _response(self, event: Reservation | SampledToken | FinishReason) -> decode_pb2.DecodeResponse:
        if isinstance(event, Reservation):
            return decode_pb2.DecodeResponse(ticket=self._ticket(event))
        if isinstance(event, SampledToken):
            return decode_pb2.DecodeResponse(tokens=decode_pb2.DecodedTokens(tokens=[to_generated(event)]))
        return decode_pb2.DecodeResponse(finished=decode_pb2.DecodeFinished(reason=REASONS[event]))

    def _ticket(self, reservation: Reservation) -> kv_pb2.KvTicket:
        return kv_pb2.KvTicket(
            address=self._site.address,
            instance_id=self._site.instance_id,
            reservation_id=reservation.id,
            layout=layout_to_proto(self._site.parts.cache.layout),
            held_blocks=reservation.first_block,
            num_blocks=len(reservation.blocks),
            lease_ms=round(self._engine.intake.reservations.ttl_s * 1000),
        )
