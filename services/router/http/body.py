"""Reads request bodies within a limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from services.router.http.authentication import caller_of
from triptych.errors import PayloadTooLargeError, RequestCancelledError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body; PayloadTooLargeError as soon as it is known to be over the limit, DeadlineExceededError if slow."""
    announced = request.headers.get("content-length", "")
    _check(int(announced) if announced.isdecimal() else 0, max_bytes)
    body = bytearray()
    try:
        async with caller_of(request).in_time("the request body"):
            async for chunk in request.stream():
                body += chunk
                _check(len(body), max_bytes)
    except ClientDisconnect as error:
        raise RequestCancelledError("the client left") from error
    return bytes(body)


def _check(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise PayloadTooLargeError(f"the request body is over the limit of {max_bytes} bytes")
