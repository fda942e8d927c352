"""The error tree in OpenAI's form."""

from __future__ import annotations

import logging
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from services.router.http.request_ids import REQUEST_ID, request_id_of
from triptych.errors import ImagesNotFoundError, InternalError, RequestCancelledError, TriptychError

log = logging.getLogger(__name__)
DEFAULT_WAIT_S = 1
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(error: TriptychError) -> dict[str, Any]:
    """{"error": {...}} with `code` the stable reason."""
    return {"error": _fields(error.message, error.http_status, error.param, error.reason) | _extras(error)}


def error_response(error: TriptychError) -> JSONResponse:
    """The error with its status; where waiting helps it says how long, a second where nobody knows."""
    wait = error.retry_after_s or (DEFAULT_WAIT_S if error.http_status in (429, 503) else 0)
    headers = {"retry-after": str(math.ceil(wait))} if wait else {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error), error.http_status, headers)


def as_ours(error: Exception) -> TriptychError:
    """The error itself when it is of our tree; anything else is logged and becomes InternalError."""
    if isinstance(error, TriptychError):
        return error
    log.error("unexpected failure in the HTTP interface", exc_info=error)
    return InternalError("internal error; see the server's log")


def note_refusal(scope: Scope, error: Exception) -> None:
    """Count a request that was refused, unless it was counted where it failed; who leaves was not refused."""
    refused = isinstance(error, TriptychError) and not isinstance(error, RequestCancelledError)
    if scope["method"] == "POST" and refused:
        scope["app"].state.refused(error)


async def on_error(request: Request, error: Exception) -> JSONResponse:
    """Handler for errors that a route raised. One that nobody expected is answered outside of all middleware."""
    note_refusal(request.scope, error)
    response = error_response(as_ours(error))
    response.headers[REQUEST_ID] = request_id_of(request)
    return response


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Handler for unknown paths and methods."""
    if not isinstance(error, HTTPException):
        return await on_error(request, error)
    body = {"error": _fields(f"{request.method} {request.url.path}: {error.detail}", error.status_code, None, "route")}
    return JSONResponse(body, error.status_code, error.headers)


def _fields(message: str, status: int, param: str | None, code: str) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def _extras(error: TriptychError) -> dict[str, Any]:
    return {"missing_digests": list(error.digests)} if isinstance(error, ImagesNotFoundError) else {}
