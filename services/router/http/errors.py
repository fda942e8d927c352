"""The error tree in OpenAI's form."""

from __future__ import annotations

import logging
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from triptych.errors import ImagesNotFoundError, InternalError, TriptychError

log = logging.getLogger(__name__)
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(error: TriptychError) -> dict[str, Any]:
    """{"error": {...}} with `code` the stable reason."""
    return {"error": _fields(error.message, error.http_status, error.param, error.reason) | _extras(error)}


def error_response(error: TriptychError) -> JSONResponse:
    """The error with its status; says when to come back where that is known."""
    wait = error.retry_after_s
    headers = {"retry-after": str(math.ceil(wait))} if wait else None
    return JSONResponse(error_body(error), error.http_status, headers)


def as_ours(error: Exception) -> TriptychError:
    """The error itself when it is of our tree; anything else is logged and becomes InternalError."""
    if isinstance(error, TriptychError):
        return error
    log.error("unexpected failure in the HTTP interface", exc_info=error)
    return InternalError("internal error; see the server's log")


async def on_error(request: Request, error: Exception) -> JSONResponse:
    """Handler for errors that a route raised."""
    return error_response(as_ours(error))


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
