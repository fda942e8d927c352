"""Refuses calls that are meant for another process: an address may have been taken over since the caller looked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import Any

import grpc

from triptych.errors import WrongInstanceError

INSTANCE_KEY = "triptych-instance"


def instance_metadata(instance_id: str) -> tuple[tuple[str, str], ...]:
    """Call metadata that names the process a call is meant for."""
    return ((INSTANCE_KEY, instance_id),)


class InstanceInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls pass that name nobody or one of `instances`, which are the registry entries of this process."""

    def __init__(self, instances: Collection[str]) -> None:
        self._instances = instances

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, or one that raises WrongInstanceError."""
        handler = await continuation(handler_call_details)
        if handler is None or self._meant(handler_call_details):
            return handler
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        build = getattr(grpc, f"{'_'.join(kind)}_rpc_method_handler")
        return build(
            _refuse_stream if handler.response_streaming else _refuse,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _meant(self, details: grpc.HandlerCallDetails) -> bool:
        metadata: Any = details.invocation_metadata or ()
        return all(value in self._instances for key, value in metadata if key == INSTANCE_KEY)


async def _refuse(request: Any, context: Any) -> Any:
    raise WrongInstanceError("this address belongs to another worker now")


async def _refuse_stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
    yield await _refuse(request, context)
