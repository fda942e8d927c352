"""Brings files past the store to an encoder that cannot read them there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from common.rpc.channels import Channels
from common.tracing import outgoing
from triptych.v1.encoder_pb2 import EncodeImage, PutPixelsHeader, PutPixelsRequest
from triptych.v1.encoder_pb2_grpc import EncoderServiceStub

CHUNK_BYTES = 2**20
Files = Callable[[str, str], bytes | None]


class Pixels:
    """`files` gives the bytes of an image id in a scope, if the router has them."""

    def __init__(self, files: Files, channels: Channels) -> None:
        self._files, self._channels = files, channels

    async def send(self, address: str, images: Iterable[EncodeImage], timeout_s: float) -> int:
        """Send what is at hand to the encoder at `address`; how many files that were. gRPC errors pass."""
        sent = 0
        for image in images:
            if (data := self._files(image.cache_scope, image.image_id)) is not None:
                stub = EncoderServiceStub(self._channels.get(address))
                await stub.PutPixels(_pieces(image, data), timeout=timeout_s, metadata=outgoing())
                sent += 1
        return sent


async def _pieces(image: EncodeImage, data: bytes) -> AsyncIterator[PutPixelsRequest]:
    header = PutPixelsHeader(cache_scope=image.cache_scope, image_id=image.image_id, size_bytes=len(data))
    yield PutPixelsRequest(header=header)
    for start in range(0, len(data), CHUNK_BYTES):
        yield PutPixelsRequest(chunk=data[start : start + CHUNK_BYTES])
