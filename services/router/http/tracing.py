"""The caller's trace over HTTP: `traceparent` and `tracestate` as W3C defines them."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from common.tracing import adopt


class TraceContext:
    """ASGI middleware; the server runs each request in a task of its own, to which the context belongs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, as part of the caller's trace."""
        if scope["type"] == "http":
            adopt(Headers(scope=scope).items())
        await self._app(scope, receive, send)
