"""Uploaded pictures, per cache scope: bytes by image id, records by file digest and by image id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import cast

from redis.asyncio import Redis

from common.store.client import blob_key, record_key
from common.store.gate import Gate

BLOB_TTL_S = 3600.0


@dataclass(frozen=True)
class StoredImage:
    """What is known of an uploaded picture; `width` and `height` are upright pixels.

    `look` is its perceptual hash, "" where an earlier release wrote the record. It is for reports only.
    """

    digest: str
    image_id: str
    width: int
    height: int
    look: str = ""


class ImageStore:
    """Two scopes never see each other's pictures. Everything expires `ttl_s` seconds after its last use."""

    def __init__(self, redis: Redis, ttl_s: float = BLOB_TTL_S, gate: Gate | None = None) -> None:
        self._redis, self._gate = redis, gate or Gate(redis)
        self._ttl_ms = round(ttl_s * 1000)

    async def put(self, scope: str, image: StoredImage, data: bytes) -> None:
        """Store the bytes, then the record under both names; repeating it is harmless."""
        value = _pack(scope, image)
        async with self._gate(), self._redis.pipeline(transaction=False) as pipe:
            pipe.set(blob_key(scope, image.image_id), data, px=self._ttl_ms)
            for name in (image.digest, image.image_id):
                pipe.set(record_key(scope, name), value, px=self._ttl_ms)
            await pipe.execute()

    async def find(self, scope: str, digests: Sequence[str]) -> dict[str, StoredImage]:
        """The known ones among file digests and image ids. Known means that the bytes are still here, too."""
        names = list(dict.fromkeys(digests))
        if not names:
            return {}
        async with self._gate():
            records = await self._records(scope, names)
            present = await self._touch_blobs(scope, {image.image_id for image in records.values()})
        return {name: image for name, image in records.items() if image.image_id in present}

    async def load(self, scope: str, image_id: str) -> bytes | None:
        """The uploaded bytes, or None when they are not here. The caller checks that they decode to `image_id`."""
        async with self._gate():
            return cast(bytes | None, await self._redis.getex(blob_key(scope, image_id), px=self._ttl_ms))

    async def _records(self, scope: str, names: Sequence[str]) -> dict[str, StoredImage]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.getex(record_key(scope, name), px=self._ttl_ms)
            values = await pipe.execute()
        parsed = ((name, _unpack(scope, name, value)) for name, value in zip(names, values, strict=True))
        return {name: image for name, image in parsed if image is not None}

    async def _touch_blobs(self, scope: str, image_ids: Iterable[str]) -> set[str]:
        # Renewing the life of a key also says whether it exists, and keeps it until the encoder has read it.
        ids = list(image_ids)
        async with self._redis.pipeline(transaction=False) as pipe:
            for image_id in ids:
                pipe.pexpire(blob_key(scope, image_id), self._ttl_ms)
            kept = await pipe.execute() if ids else []
        return {image_id for image_id, there in zip(ids, kept, strict=True) if there}


def _pack(scope: str, image: StoredImage) -> bytes:
    return json.dumps({"scope": scope, **asdict(image)}).encode()


def _unpack(scope: str, name: str, value: bytes | None) -> StoredImage | None:
    # A value that is no record of this name (corrupt, or read from another call's connection) is a miss.
    try:
        content = json.loads(value or b"null")
    except ValueError:
        return None
    if not isinstance(content, dict) or content.pop("scope", None) != scope:
        return None
    image = _checked(content)
    return image if image is not None and name in (image.digest, image.image_id) else None


def _checked(content: Mapping[str, object]) -> StoredImage | None:
    kinds = {"digest": str, "image_id": str, "width": int, "height": int, "look": str}
    content = {"look": "", **content}
    if set(content) != {field.name for field in fields(StoredImage)}:
        return None
    if not all(type(content[name]) is kind for name, kind in kinds.items()):
        return None
    return StoredImage(**content)  # type: ignore[arg-type]
