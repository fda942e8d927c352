"""Pictures on their way to the server: one header, then the file in chunks; and questions about known ones."""

from __future__ import annotations

from collections.abc import Iterator

from triptych.errors import ImagesNotFoundError
from triptych.messages import Image
from triptych.v1.router_pb2 import FindImagesRequest, ListImagesRequest, PutImageHeader, PutImageRequest

CHUNK_BYTES = 2**20


def pieces(image: Image, cache_salt: str | None) -> Iterator[PutImageRequest]:
    """The messages of one PutImage call; ImagesNotFoundError when there are no bytes to send."""
    if image.data is None:
        raise ImagesNotFoundError([image.digest])
    header = PutImageHeader(digest=image.digest, size_bytes=len(image.data), cache_salt=cache_salt)
    yield PutImageRequest(header=header)
    view = memoryview(image.data)
    for start in range(0, len(view), CHUNK_BYTES):
        yield PutImageRequest(chunk=bytes(view[start : start + CHUNK_BYTES]))


def find_request(digests: list[str], cache_salt: str | None) -> FindImagesRequest:
    """Asks which of `digests` (file digests, at most 1024) need an upload."""
    return FindImagesRequest(digests=digests, cache_salt=cache_salt)


def list_request(cache_salt: str | None, page_token: str) -> ListImagesRequest:
    """Asks for one page of the known pictures, as large as the server gives them."""
    return ListImagesRequest(page_size=1000, page_token=page_token, cache_salt=cache_salt)
