"""The one place where an exception becomes a gRPC status; no traceback crosses it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from common.tracing import adopt
from triptych.errors import InternalError, TriptychError
from triptych.status import short, to_metadata

log = logging.getLogger(__name__)

Streaming = Callable[..., AsyncGenerator[Any, None]]
if TYPE_CHECKING:
    # Generic in the type stubs only.
    Context = grpc.aio.ServicerContext[Any, Any]


async def _abort(context: Context, error: Exception, method: str) -> None:
    if not isinstance(error, TriptychError):
        log.error("unexpected failure in %s", method, exc_info=error)
        error = InternalError("internal error; see the server's log")
    code = getattr(grpc.StatusCode, error.code)
    await context.abort(code, short(error.message), trailing_metadata=to_metadata(error))


def _guard_unary(inner: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        adopt(context.invocation_metadata() or ())
        try:
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method)

    return call


def _guard_stream(inner: Streaming, method: str) -> Streaming:
    async def call(request: Any, context: Context) -> AsyncGenerator[Any, None]:
        adopt(context.invocation_metadata() or ())
        try:
            # Closed by hand, so that a cancelled call frees what it holds now and not at some later collection.
            async with contextlib.aclosing(inner(request, context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method)

    return call


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps errors of all four kinds of handler. Streaming handlers must be async generators."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method's handler; health and reflection pass unchanged."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith("/triptych."):
            return handler
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        name = "_".join(kind)
        guard = _guard_stream if handler.response_streaming else _guard_unary
        build = getattr(grpc, f"{name}_rpc_method_handler")
        return build(
            guard(getattr(handler, name), method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
