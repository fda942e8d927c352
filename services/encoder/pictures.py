"""From an uploaded file in the store to the tower's input, off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from common.images import ImageLimits, decode_image
from common.images.limits import PIXEL_CEILING
from common.models.tower import Prepared, Tower
from common.store.images import ImageStore
from services.encoder.work import Task
from triptych.errors import FailedPreconditionError, ImagesNotFoundError, InvalidImageError, UnavailableError

# The router applied its own limits at the upload; these only bound memory.
LIMITS = ImageLimits(max_bytes=2**30, max_pixels=PIXEL_CEILING, max_side=2**16, max_aspect=2**16)


class PictureSource:
    """Loads, decodes, checks and preprocesses pictures, `threads` at a time."""

    def __init__(self, store: ImageStore, tower: Tower, threads: int) -> None:
        self._store, self._tower = store, tower
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pictures")

    async def prepare(self, task: Task) -> Prepared:
        """The tower's input. ImagesNotFoundError: its bytes are not here; InvalidImageError: they cannot be used."""
        data = task.data or await self._load(task)
        if data is None:
            raise ImagesNotFoundError([task.image_id])
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._prepare, task, data)

    async def _load(self, task: Task) -> bytes | None:
        # Whoever has the file can also send it here; so a store that is down is no more than one that lacks it.
        try:
            return await self._store.load(task.cache_scope, task.image_id)
        except UnavailableError:
            return None

    def _prepare(self, task: Task, data: bytes) -> Prepared:
        decoded = decode_image(data, LIMITS)
        if (decoded.width, decoded.height) != (task.width, task.height):
            raise InvalidImageError(
                f"the image has {decoded.width}x{decoded.height} pixels, but {task.width}x{task.height} were recorded"
            )
        if decoded.image_id != task.image_id:
            # Whatever lies under this name is another picture; sending the right bytes mends it.
            raise ImagesNotFoundError([task.image_id])
        prepared = self._tower.preprocess(decoded.image)
        if prepared.tokens != task.tokens:
            raise FailedPreconditionError(
                f"router and encoder differ: the image has {prepared.tokens} tokens here, {task.tokens} in the prompt"
            )
        return prepared
