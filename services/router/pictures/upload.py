"""Puts the pieces of one upload together."""

from __future__ import annotations

from collections.abc import AsyncIterator

from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import PutImageHeader, PutImageRequest


async def read_header(pieces: AsyncIterator[PutImageRequest]) -> PutImageHeader:
    """The first piece; InvalidArgumentError when it is no header or its digest is malformed."""
    first = await anext(pieces, None)
    if first is None or not first.HasField("header"):
        raise InvalidArgumentError("an upload begins with a header", param="header")
    check_digest(first.header.digest, "header.digest")
    return first.header


async def read_body(pieces: AsyncIterator[PutImageRequest], size_bytes: int) -> bytes:
    """Exactly `size_bytes` of content, and hardly more than that in memory; InvalidArgumentError for another size."""
    body = bytearray()
    async for piece in pieces:
        if not piece.HasField("chunk"):
            raise InvalidArgumentError("an upload has one header", param="header")
        body += piece.chunk
        if len(body) > size_bytes:
            break
    if len(body) != size_bytes:
        held = "more" if len(body) > size_bytes else f"{len(body)}"
        message = f"the header announces {size_bytes} bytes, the chunks hold {held}"
        raise InvalidArgumentError(message, param="header.size_bytes")
    return bytes(body)
