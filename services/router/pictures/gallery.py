"""What is told about known pictures: figures collected on the way, and pages of the list."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.images.looks import Seen, near_duplicates
from common.store.gallery import Gallery, Known, Note
from common.store.images import StoredImage
from common.tracing.sparing import SparingLog
from triptych.errors import InvalidArgumentError, UnavailableError

log = SparingLog(logging.getLogger(__name__))
MAX_PENDING = 4096
DEFAULT_PAGE, MAX_PAGE = 100, 1000


class Notes:
    """Writes what happened to pictures in the background: no request waits for it, and none fails with it.

    What comes faster than the store takes it is added up; while the store is down it is dropped.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._pending: dict[str, dict[StoredImage, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, scope: str, images: Iterable[StoredImage], uses: int = 0) -> None:
        """`uses` requests needed them: each picture counts once, whatever its files. Needs a running loop."""
        counted: set[str] = set()
        for image in images:
            if sum(map(len, self._pending.values())) >= MAX_PENDING:
                break
            pending = self._pending.setdefault(scope, {})
            pending[image] = pending.get(image, 0) + (0 if image.image_id in counted else uses)
            counted.add(image.image_id)
        if self._pending and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write(), name="picture-notes")

    async def close(self) -> None:
        """Write what is left; twice is harmless."""
        if self._task is not None:
            await self._task

    async def _write(self) -> None:
        while self._pending:
            scope = next(iter(self._pending))
            notes = [Note(image, uses) for image, uses in self._pending.pop(scope).items()]
            try:
                await self._gallery.note(scope, notes)
            except UnavailableError as error:
                log.warning("the use of %d pictures is not recorded: %s", len(notes), error.message)


@dataclass(frozen=True)
class Page:
    """Some of the known pictures, where to go on ("" at the end), and groups of those that look the same."""

    pictures: Sequence[Known]
    next_token: str
    groups: Sequence[Sequence[Known]]


async def read_page(gallery: Gallery, scope: str, size: int, token: str) -> Page:
    """The pictures used before `token`, the latest first. Groups span the whole scope, and come with its first page."""
    before = _read_token(token)
    if size > MAX_PAGE:
        raise InvalidArgumentError(f"a page holds at most {MAX_PAGE} pictures, not {size}", param="page_size")
    known = await gallery.read(scope)
    groups = [] if token else await asyncio.to_thread(_groups, known)
    rest = [each for each in known if before is None or each.last_use_us < before]
    taken = rest[: size or DEFAULT_PAGE]
    more = len(taken) < len(rest)
    return Page(taken, str(taken[-1].last_use_us) if more else "", groups)


def _read_token(token: str) -> int | None:
    if token and not (token.isascii() and token.isdigit() and len(token) < 20):
        raise InvalidArgumentError("the page token is none of this server", param="page_token")
    return int(token) if token else None


def _groups(known: Sequence[Known]) -> list[list[Known]]:
    seen = [Seen(each.image.look, each.image.width, each.image.height) for each in known]
    return [[known[index] for index in group] for group in near_duplicates(seen)]
