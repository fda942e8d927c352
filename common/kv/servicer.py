"""KvService on the wire: what is cached here, and KV that arrives for a reservation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from common.kv.frames import FetchFrame, PullFrame, PushFrame, decode_push, encode
from common.kv.links import NAME
from common.kv.paths import path_of
from common.kv.reading import serve_fetch
from common.kv.receiver import PushReceiver, Target
from common.kv.serving import Shelf, serve_pull
from common.tracing import Span, held
from triptych.errors import FailedPreconditionError
from triptych.v1 import kv_pb2

Context = grpc.aio.ServicerContext


class KvServicer:
    """Register it with `add_kv_service`: payloads travel beside the messages. Without `target` nobody may push."""

    def __init__(self, shelf: Shelf, target: Target | None = None) -> None:
        self._shelf = shelf
        self._target = target

    async def Have(self, request: kv_pb2.HaveRequest, context: Context[Any, Any]) -> kv_pb2.HaveResponse:
        """Count the leading cached blocks."""
        return kv_pb2.HaveResponse(num_blocks=len(self._shelf.prefix.match(request.block_hashes)))

    async def Fetch(self, request: kv_pb2.FetchRequest, context: Context[Any, Any]) -> AsyncGenerator[FetchFrame, None]:
        """A pull without answers; see the proto."""
        async with aclosing(serve_fetch(request, self._shelf)) as frames:
            async for frame in frames:
                yield frame

    async def Pull(
        self, request_iterator: AsyncIterator[kv_pb2.PullRequest], context: Context[Any, Any]
    ) -> AsyncGenerator[PullFrame, None]:
        """Header, chunks, end, each answered; see the proto."""
        async with aclosing(serve_pull(request_iterator, self._shelf)) as frames:
            async for frame in frames:
                yield frame

    async def Push(
        self, request_iterator: AsyncIterator[PushFrame], context: Context[Any, Any]
    ) -> AsyncGenerator[kv_pb2.PushResponse, None]:
        """Header, chunks, first token, each answered; see the proto."""
        if self._target is None:
            raise FailedPreconditionError("this worker reserves no blocks, so it has issued no KV ticket")
        with held("kv receive") as current:
            async with aclosing(PushReceiver(self._target).run(request_iterator)) as answers:
                async for answer in answers:
                    self._note(current, answer)
                    yield answer

    def _note(self, current: Span, answer: kv_pb2.PushResponse) -> None:
        if answer.HasField("opened"):
            current.set_attribute("path", path_of(answer.opened.staged))
        elif answer.HasField("acknowledged"):
            size = answer.acknowledged.received_bytes
            current.set_attributes({"bytes": size, "blocks": size // self._shelf.cache.layout.bytes_per_block})


def add_kv_service(servicer: KvServicer, server: grpc.aio.Server) -> None:
    """Register a KvService whose calls take and give frames instead of messages with payloads."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Have": grpc.unary_unary_rpc_method_handler(
            servicer.Have, kv_pb2.HaveRequest.FromString, kv_pb2.HaveResponse.SerializeToString
        ),
        "Fetch": grpc.unary_stream_rpc_method_handler(servicer.Fetch, kv_pb2.FetchRequest.FromString, encode),
        "Pull": grpc.stream_stream_rpc_method_handler(servicer.Pull, kv_pb2.PullRequest.FromString, encode),
        "Push": grpc.stream_stream_rpc_method_handler(
            servicer.Push, decode_push, kv_pb2.PushResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
