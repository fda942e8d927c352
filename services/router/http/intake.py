"""Turns the picture URLs of an OpenAI request into references by content."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.router.caller import Caller
from services.router.http.data_url import SCHEME, read_data_url
from services.router.http.schema import ChatRequest, ImageUrl, TokenizeRequest
from services.router.pictures.images import Images
from services.router.prompts.messages import check_image_count, check_image_role
from services.router.remote.images import RemoteImages
from triptych.digests import check_digest, file_digest
from triptych.errors import InvalidArgumentError, InvalidImageError, RemoteImageError

REFERENCE = "triptych:"
REMOTE = ("http://", "https://")


@dataclass(frozen=True)
class Picture:
    """One occurrence and its field: by `digest`, with the bytes where the request holds them, or by `url`."""

    param: str
    digest: str = ""
    data: bytes | None = None
    url: str = ""


class Intake:
    """Stores what came inline, or is fetched, and is not known yet. Without `remote` no URL is fetched."""

    def __init__(self, images: Images, max_bytes: int, max_images: int, remote: RemoteImages | None = None) -> None:
        self._images, self._max_bytes, self._max_images = images, max_bytes, max_images
        self._remote = remote

    async def digests(self, request: ChatRequest | TokenizeRequest, caller: Caller) -> list[str]:
        """Digest of every picture in order. Count and roles are checked before anything is decoded or fetched."""
        urls = _urls(request)
        check_image_count(len(urls), self._max_images)
        scope = caller.scope(request.cache_salt)
        pictures = [await asyncio.to_thread(self._read, url, param) for url, param in urls]
        await self._store(scope, [picture for picture in pictures if picture.data is not None])
        fetched = await self._fetch(scope, {picture.url: picture.param for picture in pictures if picture.url}, caller)
        return [picture.digest or fetched[picture.url] for picture in pictures]

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

    async def _fetch(self, scope: str, params: Mapping[str, str], caller: Caller) -> dict[str, str]:
        """Digests by URL; the first failure ends the other fetches."""
        remote = self._remote
        if not params or remote is None:
            return {}
        try:
            async with caller.in_time("a remote image"), asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(remote.digest(scope, url, param)) for url, param in params.items()}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {url: task.result() for url, task in tasks.items()}

    def _read(self, image: ImageUrl, param: str) -> Picture:
        url = image.url.strip()
        if url[: len(SCHEME)].lower() == SCHEME:
            data = read_data_url(url, self._max_bytes, param)
            return Picture(param, file_digest(data), data)
        if url.startswith(REFERENCE):
            return Picture(param, check_digest(url[len(REFERENCE) :], param))
        if not url.lower().startswith(REMOTE):
            raise InvalidArgumentError("an image URL begins with data:, https:, http: or triptych:", param=param)
        if self._remote is None:
            raise RemoteImageError("this server fetches no remote images; send a data: URL", param=param)
        return Picture(param, url=url)


def _urls(request: ChatRequest | TokenizeRequest) -> list[tuple[ImageUrl, str]]:
    """Every picture with the field that names it; InvalidArgumentError where a role holds none."""
    urls = []
    for index, message in enumerate(request.messages):
        for at, part in enumerate(message.content):
            if part.type == "image_url":
                check_image_role(message.role, f"messages[{index}]")
                urls.append((part.image_url, f"messages[{index}].content[{at}].image_url.url"))
    return urls
