"""The one place where an exception becomes a gRPC status; no traceback crosses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from common.tracing import adopt
from triptych.errors import InternalError, RequestCancelledError, TriptychError
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


def _guard_stream(inner: Streaming, method: str, send_timeout_s: float | None) -> Callable[..., Awaitable[None]]:
    async def call(request: Any, context: Context) -> None:
        adopt(context.invocation_metadata() or ())
        try:
            # Closed by hand, so that a cancelled call frees what it holds now and not at some later collection.
            async with aclosing(inner(request, context)) as responses:
                async for response in responses:
                    await _write(context, response, send_timeout_s)
        except grpc.aio.BaseError:
            # The call has been aborted already, or has died while a response was written.
            raise
        except Exception as error:
            await _abort(context, error, method)

    return call


async def _write(context: Context, response: Any, timeout_s: float | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await context.write(response)
    except TimeoutError:
        raise RequestCancelledError("the caller does not read its answer") from None


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps errors of all four kinds of handler. Streaming handlers must be async generators.

    Callers that take nothing of their stream for `send_timeout_s` seconds are given up; None: never.
    """

    def __init__(self, send_timeout_s: float | None = None) -> None:
        self._send_timeout_s = send_timeout_s

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
        guard = (
            partial(_guard_stream, send_timeout_s=self._send_timeout_s) if handler.response_streaming else _guard_unary
        )
        build = getattr(grpc, f"{name}_rpc_method_handler")
        return build(
            guard(getattr(handler, name), method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
