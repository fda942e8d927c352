"""Turns the picture URLs of an OpenAI request into references by content."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from common.identity import cache_scope
from services.router.caller import ANONYMOUS
from services.router.http.data_url import SCHEME, read_data_url
from services.router.http.schema import ChatRequest, ImageUrl
from services.router.images import Images
from services.router.messages import check_image_count, check_image_role
from triptych.digests import check_digest, file_digest
from triptych.errors import InvalidArgumentError, InvalidImageError

REFERENCE = "triptych:"


@dataclass(frozen=True)
class Picture:
    """One occurrence: its digest, the bytes where the request carries them, and the field it came from."""

    digest: str
    data: bytes | None
    param: str


class Intake:
    """Stores what came inline and is not known yet."""

    def __init__(self, images: Images, max_bytes: int, max_images: int) -> None:
        self._images, self._max_bytes, self._max_images = images, max_bytes, max_images

    async def digests(self, request: ChatRequest) -> list[str]:
        """Digest of every picture in order. Count and roles are checked before anything is decoded."""
        urls = _urls(request)
        check_image_count(len(urls), self._max_images)
        pictures = [await asyncio.to_thread(self._read, url, param) for url, param in urls]
        scope = cache_scope(ANONYMOUS, request.cache_salt)
        await self._store(scope, [picture for picture in pictures if picture.data is not None])
        return [picture.digest for picture in pictures]

    async def _store(self, scope: str, pictures: Sequence[Picture]) -> None:
        known = await self._images.find(scope, [picture.digest for picture in pictures])
        unknown = {picture.digest: picture for picture in pictures if picture.digest not in known}
        for picture in unknown.values():
            await self._put(scope, picture)

    async def _put(self, scope: str, picture: Picture) -> None:
        try:
            await self._images.put(scope, picture.data or b"", picture.digest)
        except InvalidImageError as error:
            error.param = picture.param
            raise

    def _read(self, image: ImageUrl, param: str) -> Picture:
        url = image.url.strip()
        if url[: len(SCHEME)].lower() == SCHEME:
            data = read_data_url(url, self._max_bytes, param)
            return Picture(file_digest(data), data, param)
        if url.startswith(REFERENCE):
            return Picture(check_digest(url[len(REFERENCE) :], param), None, param)
        if url.lower().startswith(("http://", "https://")):
            raise InvalidArgumentError("this server fetches no remote images; send a data: URL", param=param)
        raise InvalidArgumentError("an image URL begins with data: or triptych:", param=param)


def _urls(request: ChatRequest) -> list[tuple[ImageUrl, str]]:
    """Every picture with the field that names it; InvalidArgumentError where a role holds none."""
    urls = []
    for index, message in enumerate(request.messages):
        for at, part in enumerate(message.content):
            if part.type == "image_url":
                check_image_role(message.role, f"messages[{index}]")
                urls.append((part.image_url, f"messages[{index}].content[{at}].image_url.url"))
    return urls
