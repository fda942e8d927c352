"""Pictures that clients uploaded: found by digest, taken in by content."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from common.families import Family
from common.images import ImageLimits, decode_image, look_of
from common.store.gallery import Gallery, Known
from common.store.images import ImageStore, StoredImage
from common.tracing.sparing import SparingLog
from services.router.pictures.gallery import Notes, read_page
from services.router.pictures.recent import RecentUploads
from triptych.digests import file_digest
from triptych.errors import (
    ImagesNotFoundError,
    InvalidArgumentError,
    InvalidImageError,
    PayloadTooLargeError,
    UnavailableError,
)
from triptych.v1.router_pb2 import ImageRecord, KnownImage, ListImagesResponse, LookAlikes

log = SparingLog(logging.getLogger(__name__))


class Images:
    """The pictures of all scopes. At most `max_decoding` are in memory as pixels at the same time."""

    def __init__(
        self,
        store: ImageStore,
        gallery: Gallery,
        family: Family,
        limits: ImageLimits,
        max_decoding: int,
        recent: RecentUploads,
    ) -> None:
        self._store, self._gallery, self._family, self._limits = store, gallery, family, limits
        self._recent, self._notes = recent, Notes(gallery)
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
        found |= {name: image for name, (image, _) in lost.items()}
        self._notes.add(scope, found.values())
        return found

    def file(self, scope: str, image_id: str) -> bytes | None:
        """The bytes of a picture that was uploaded here lately."""
        upload = self._recent.get(scope, image_id)
        return upload[1] if upload else None

    async def get(self, scope: str, digests: Sequence[str]) -> dict[str, StoredImage]:
        """All of `digests`, for one request; ImagesNotFoundError listing those that must be uploaded first."""
        found = await self.find(scope, digests)
        missing = [digest for digest in dict.fromkeys(digests) if digest not in found]
        if missing:
            raise ImagesNotFoundError(missing, param="messages")
        self._notes.add(scope, found.values(), uses=1)
        return found

    async def put(self, scope: str, data: bytes, digest: str) -> StoredImage:
        """Store a file; InvalidImageError, or InvalidArgumentError when it does not have the digest announced.

        UnavailableError when it can be kept neither in the store nor here.
        """
        if await asyncio.to_thread(file_digest, data) != digest:
            raise InvalidArgumentError("the bytes do not have the digest of the header", param="header.digest")
        async with self._decoding:
            image = await asyncio.to_thread(self._examine, data, digest)
        kept = self._recent.put(scope, image, data)
        await self._keep(scope, image, data, needed=not kept)
        self._notes.add(scope, [image])
        return image

    async def page(self, scope: str, size: int, token: str) -> ListImagesResponse:
        """Some of the known pictures of a scope; UnavailableError while the store is down."""
        page = await read_page(self._gallery, scope, size, token)
        return ListImagesResponse(
            images=[self._known(each) for each in page.pictures],
            next_page_token=page.next_token,
            look_alikes=[_alike(group) for group in page.groups],
        )

    async def close(self) -> None:
        """Write down what was done with the pictures last."""
        await self._notes.close()

    def check_size(self, size_bytes: int) -> None:
        """PayloadTooLargeError for a file over the limit, before its bytes are taken in."""
        if size_bytes > self._limits.max_bytes:
            message = f"the image has {size_bytes} bytes; the limit is {self._limits.max_bytes}"
            raise PayloadTooLargeError(message, param="header.size_bytes")

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

    def _known(self, known: Known) -> KnownImage:
        try:
            image = self.record(known.image)
        except InvalidImageError:
            # Uploaded for another model, with which this router shares the store.
            image = ImageRecord(digest=known.image.digest, image_id=known.image.image_id)
            image.width, image.height = known.image.width, known.image.height
        return KnownImage(
            image=image,
            digests=known.files,
            uses=known.uses,
            last_use_unix_ms=known.last_use_us // 1000,
            look=known.image.look,
        )

    async def _keep(self, scope: str, image: StoredImage, data: bytes, needed: bool = False) -> None:
        try:
            await self._store.put(scope, image, data)
        except UnavailableError as error:
            if needed:
                raise
            log.warning("a picture is kept in memory only: %s", error.message)

    def _examine(self, data: bytes, digest: str) -> StoredImage:
        """What the pixels are; refuses what the model's image processor would refuse later."""
        decoded = decode_image(data, self._limits)
        self._family.layout(decoded.width, decoded.height)
        return StoredImage(digest, decoded.image_id, decoded.width, decoded.height, look_of(decoded.image))


def _alike(group: Sequence[Known]) -> LookAlikes:
    used = sum(known.uses > 0 for known in group)
    return LookAlikes(image_ids=[known.image.image_id for known in group], encodings=used)
