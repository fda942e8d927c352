"""Lets known callers through to the routes, within their quotas."""

from __future__ import annotations

from contextlib import closing

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.router.access.access import Access
from services.router.caller import Caller
from services.router.http.errors import error_response, note_refusal
from triptych.errors import TriptychError

# Probes and scrapers have no key, and the console asks its user for one.
OPEN_PATHS = ("/", "/healthz", "/readyz", "/metrics")
OPEN_PREFIXES = ("/console/",)
# Requests of the quota, besides everything that is posted.
COUNTED_PATHS = ("/v1/images",)


class Authentication:
    """ASGI middleware: every path but the open ones needs a key, routes that do not exist included."""

    def __init__(self, app: ASGIApp, access: Access, timeout_s: float) -> None:
        self._app, self._access, self._timeout_s = app, access, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or hand on with the caller in the request's state. The quota is held until the response has ended."""
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._admit(scope)
        except TriptychError as error:
            note_refusal(scope, error)
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        with closing(caller.allowance):
            await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> Caller:
        caller = self._access.caller(Headers(scope=scope).get("authorization"), self._timeout_s)
        if scope["method"] == "POST" or scope["path"] in COUNTED_PATHS:
            caller.allowance.begin()
        return caller


def is_open(path: str) -> bool:
    """Whether a path is for everybody."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


def caller_of(request: Request) -> Caller:
    """Who sent a request that has passed."""
    caller: Caller = request.state.caller
    return caller
