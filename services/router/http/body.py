"""Reads request bodies within a limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from services.router.http.authentication import caller_of
from services.router.pictures.incoming import Incoming
from triptych.errors import PayloadTooLargeError, RequestCancelledError


async def read_body(request: Request, max_bytes: int, incoming: Incoming) -> bytes:
    """The body; PayloadTooLargeError as soon as it is known to be over the limit, DeadlineExceededError if slow.

    ResourceExhaustedError while others fill the room for `incoming` bodies.
    """
    header = request.headers.get("content-length", "")
    announced = int(header) if header.isdecimal() else 0
    _check(announced, max_bytes)
    body = bytearray()
    try:
        async with incoming.one(caller_of(request), "the request body") as share:
            share.reserve(announced)
            async for chunk in request.stream():
                _check(len(body) + len(chunk), max_bytes)
                share.reserve(len(body) + len(chunk))
                body += chunk
    except ClientDisconnect as error:
        raise RequestCancelledError("the client left") from error
    return bytes(body)


def _check(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise PayloadTooLargeError(f"the request body is over the limit of {max_bytes} bytes")
