"""Files that clients uploaded here lately: what answers for the store while it is down or has been emptied."""

from __future__ import annotations

from collections.abc import Iterable

from common.store.images import StoredImage
from common.store.memory import MemoryTier

Upload = tuple[StoredImage, bytes]
ENTRY_BYTES = 1024
"""Roughly what Python needs for a file beside its bytes, and for its name."""


class RecentUploads:
    """Bounded in bytes, by scope: two scopes never see each other's files. Awaits nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._uploads: MemoryTier[Upload] = MemoryTier(max_bytes)
        # File digest to image id.
        self._names: MemoryTier[str] = MemoryTier(max_bytes)

    def put(self, scope: str, image: StoredImage, data: bytes) -> bool:
        """Remember a file; False when it alone is over the limit."""
        self._names.put(f"{scope}:{image.digest}", image.image_id, ENTRY_BYTES)
        return self._uploads.put(f"{scope}:{image.image_id}", (image, data), ENTRY_BYTES + len(data))

    def get(self, scope: str, name: str) -> Upload | None:
        """What is known under a file digest or an image id."""
        image_id = self._names.get(f"{scope}:{name}") or name
        return self._uploads.get(f"{scope}:{image_id}")

    def find(self, scope: str, names: Iterable[str]) -> dict[str, Upload]:
        """Those of `names` that are here."""
        found = ((name, self.get(scope, name)) for name in names)
        return {name: upload for name, upload in found if upload is not None}
