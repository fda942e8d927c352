"""A name for every request: the caller's own, or one made here; every response carries it."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
# What can stand in a header and in a log line.
_USABLE = re.compile(r"[!-~]{1,200}")


class RequestIds:
    """ASGI middleware. Nothing inside depends on a caller's name, so two requests may have the same."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on with the name in the request's state."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if _USABLE.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        await self._app(scope, receive, named)


def request_id_of(request: Request) -> str:
    """The name of a request; "" before it has one."""
    return str(getattr(request.state, "request_id", ""))
