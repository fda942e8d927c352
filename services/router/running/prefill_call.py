"""The call to a prefill worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from triptych.v1 import prefill_pb2
from triptych.v1.prefill_pb2 import ImageReady, PrefillBegin, PrefillRequest, PrefillResponse
from triptych.v1.prefill_pb2_grpc import PrefillServiceStub

_SERVICE = prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"]
_METHOD = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['Prefill'].name}"


def call_prefill(
    channel: grpc.aio.Channel, begin: PrefillBegin, pictures: AsyncIterator[ImageReady] | None, **options: Any
) -> Any:
    """To be awaited for the PrefillResponse. `pictures` says when each embedding is ready; None where there are none.

    On the wire a stream of one message is the same as one message, and gRPC sends the latter in one step instead of
    three, each of which costs a write to the socket and a turn of the event loop.
    """
    first = PrefillRequest(begin=begin)
    if pictures is not None:
        return PrefillServiceStub(channel).Prefill(_requests(first, pictures), **options)
    call = channel.unary_unary(_METHOD, PrefillRequest.SerializeToString, PrefillResponse.FromString)
    return call(first, **options)


async def _requests(first: PrefillRequest, pictures: AsyncIterator[ImageReady]) -> AsyncIterator[PrefillRequest]:
    yield first
    async for ready in pictures:
        yield PrefillRequest(image_ready=ready)
