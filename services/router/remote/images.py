"""Turns URLs into pictures by content, remembering which URL led to which file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from common.store.memory import MemoryTier
from services.router.pictures.images import Images
from services.router.remote.fetching import Fetcher, Version
from triptych.digests import file_digest
from triptych.errors import InvalidImageError

# Roughly what Python needs for an entry beside its texts.
ENTRY_BYTES = 512


@dataclass(frozen=True)
class Known:
    """The file that a URL led to, and the version it was."""

    digest: str
    version: Version


class RemoteImages:
    """At most `max_fetching` pictures are on their way at the same time, `cache_bytes` bounds what is remembered.

    What a URL led to is asked for again every time; only an unchanged file is not sent again. Scopes know nothing of
    each other's URLs.
    """

    def __init__(self, images: Images, fetcher: Fetcher, max_fetching: int, cache_bytes: int) -> None:
        self._images, self._fetcher = images, fetcher
        self._slots = asyncio.Semaphore(max_fetching)
        self._known: MemoryTier[Known] = MemoryTier(cache_bytes)

    async def digest(self, scope: str, url: str, param: str) -> str:
        """File digest of the picture behind `url`, which is then known in `scope`.

        RemoteImageError, PayloadTooLargeError or InvalidImageError, naming `param`.
        """
        async with self._slots:
            known = await self._still_here(scope, url)
            fetched = await self._fetcher.fetch(url, param, known.version if known else None)
            if fetched.data is None and known is not None:
                return known.digest
            digest = await self._take_in(scope, fetched.data or b"", param)
        self._remember(scope, url, Known(digest, fetched.version))
        return digest

    async def close(self) -> None:
        """Close the connections."""
        await self._fetcher.close()

    async def _still_here(self, scope: str, url: str) -> Known | None:
        known = self._known.get(f"{scope}:{url}")
        if known is None or not await self._images.find(scope, [known.digest]):
            return None
        return known

    async def _take_in(self, scope: str, data: bytes, param: str) -> str:
        digest = await asyncio.to_thread(file_digest, data)
        if not await self._images.find(scope, [digest]):
            try:
                await self._images.put(scope, data, digest)
            except InvalidImageError as error:
                error.param = param
                raise
        return digest

    def _remember(self, scope: str, url: str, known: Known) -> None:
        version = known.version
        if version.etag or version.last_modified:
            size = ENTRY_BYTES + len(url) + len(version.url) + len(version.etag) + len(version.last_modified)
            self._known.put(f"{scope}:{url}", known, size)
