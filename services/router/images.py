"""Pictures that clients uploaded: found by digest, taken in by content."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from common.families import Family
from common.images import ImageLimits, decode_image
from common.store.images import ImageStore, StoredImage
from services.router.recent import RecentUploads
from triptych.digests import file_digest
from triptych.errors import ImagesNotFoundError, InvalidArgumentError, PayloadTooLargeError, UnavailableError
from triptych.v1.router_pb2 import ImageRecord

log = logging.getLogger(__name__)


class Images:
    """The pictures of all scopes. At most `max_decoding` are in memory as pixels at the same time."""

    def __init__(
        self, store: ImageStore, family: Family, limits: ImageLimits, max_decoding: int, recent: RecentUploads
    ) -> None:
        self._store, self._family, self._limits, self._recent = store, family, limits, recent
        self._decoding = asyncio.Semaphore(max_decoding)

    async def find(self, scope: str, digests: Sequence[str]) -> dict[str, StoredImage]:
        """The known ones among file digests and image ids: in the store, or uploaded here lately."""
        try:
            found = await self._store.find(scope, digests)
        except UnavailableError as error:
            log.warning("pictures are looked up in memory: %s", error.message)
            found = {}
        lost = self._recent.find(scope, [digest for digest in digests if digest not in found])
        for image, data in lost.values():
            await self._keep(scope, image, data)
        return found | {name: image for name, (image, _) in lost.items()}

    def file(self, scope: str, image_id: str) -> bytes | None:
        """The bytes of a picture that was uploaded here lately."""
        upload = self._recent.get(scope, image_id)
        return upload[1] if upload else None

    async def get(self, scope: str, digests: Sequence[str]) -> dict[str, StoredImage]:
        """All of `digests`; ImagesNotFoundError listing those that must be uploaded first."""
        found = await self.find(scope, digests)
        missing = [digest for digest in dict.fromkeys(digests) if digest not in found]
        if missing:
            raise ImagesNotFoundError(missing, param="messages")
        return found

    async def put(self, scope: str, data: bytes, digest: str) -> StoredImage:
        """Store a file; InvalidImageError, or InvalidArgumentError when it does not have the digest announced.

        UnavailableError when it can be kept neither in the store nor here.
        """
        if await asyncio.to_thread(file_digest, data) != digest:
            raise InvalidArgumentError("the bytes do not have the digest of the header", param="digest")
        async with self._decoding:
            image_id, width, height = await asyncio.to_thread(self._examine, data)
        image = StoredImage(digest, image_id, width, height)
        kept = self._recent.put(scope, image, data)
        await self._keep(scope, image, data, needed=not kept)
        return image

    def check_size(self, size_bytes: int) -> None:
        """PayloadTooLargeError for a file over the limit, before its bytes are taken in."""
        if size_bytes > self._limits.max_bytes:
            message = f"the image has {size_bytes} bytes; the limit is {self._limits.max_bytes}"
            raise PayloadTooLargeError(message, param="size_bytes")

    def record(self, image: StoredImage) -> ImageRecord:
        """What a client is told of a picture."""
        layout = self._family.layout(image.width, image.height)
        return ImageRecord(
            digest=image.digest,
            image_id=image.image_id,
            width=image.width,
            height=image.height,
            tokens=layout.tokens,
        )

    async def _keep(self, scope: str, image: StoredImage, data: bytes, needed: bool = False) -> None:
        try:
            await self._store.put(scope, image, data)
        except UnavailableError as error:
            if needed:
                raise
            log.warning("a picture is kept in memory only: %s", error.message)

    def _examine(self, data: bytes) -> tuple[str, int, int]:
        """Id and size of the pixels; refuses what the model's image processor would refuse later."""
        decoded = decode_image(data, self._limits)
        self._family.layout(decoded.width, decoded.height)
        return decoded.image_id, decoded.width, decoded.height
