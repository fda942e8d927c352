"""What was done with the pictures of a scope: which there are, how often requests used them, and when last.

Two keys a scope, in one slot: an index (sorted set: image id -> microsecond of its last use) and entries (hash: image
id -> JSON). Only figures for people: nothing that decides anything reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from common.store.client import blob_key
from common.store.gate import Gate
from common.store.images import BLOB_TTL_S, StoredImage

MAX_PICTURES = 2048
"""Pictures listed per scope; the least recently used go first."""
MAX_FILES = 32
"""Files of one picture whose digests are kept."""

# KEYS: index, entries. ARGV: life in ms, pictures at most, files at most, then for each picture its id, the digest of a
# file, width, height, look and how many uses to add. A last use is later than every earlier one: it serves as a cursor.
_NOTE = """
local index, entries = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local newest = tonumber(redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2] or 0)
local function entry(name)
  local ok, found = pcall(cjson.decode, redis.call('HGET', entries, name) or '')
  if ok and type(found) == 'table' and type(found.files) == 'table' and tonumber(found.uses) then return found end
  return {uses = 0, files = {}}
end
local function has(list, value)
  for _, each in ipairs(list) do if each == value then return true end end
end
for at = 4, #ARGV, 6 do
  local name, file = ARGV[at], ARGV[at + 1]
  local found = entry(name)
  found.width, found.height, found.look = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  found.uses = found.uses + ARGV[at + 5]
  if not has(found.files, file) and #found.files < tonumber(ARGV[3]) then table.insert(found.files, file) end
  newest = math.max(now, newest + 1)
  redis.call('HSET', entries, name, cjson.encode(found))
  redis.call('ZADD', index, string.format('%.0f', newest), name)
end
local gone = redis.call('ZRANGE', index, '-inf', string.format('%.0f', now - ARGV[1] * 1000), 'BYSCORE')
for _, name in ipairs(redis.call('ZRANGE', index, 0, -1 - ARGV[2])) do gone[#gone + 1] = name end
for _, name in ipairs(gone) do
  redis.call('ZREM', index, name)
  redis.call('HDEL', entries, name)
end
redis.call('PEXPIRE', index, ARGV[1])
redis.call('PEXPIRE', entries, ARGV[1])
"""


@dataclass(frozen=True)
class Note:
    """One event: `uses` requests needed the picture; 0 for an upload or a question about it."""

    image: StoredImage
    uses: int = 0


@dataclass(frozen=True)
class Known:
    """A picture of a scope: `image` with the digest of its first file, all `files`, `last_use_us` since 1970."""

    image: StoredImage
    files: tuple[str, ...]
    uses: int
    last_use_us: int


class Gallery:
    """Entries live as long as the records beside them: `ttl_s` after the last use."""

    def __init__(self, redis: Redis, ttl_s: float = BLOB_TTL_S, gate: Gate | None = None) -> None:
        self._redis, self._gate = redis, gate or Gate(redis)
        self._ttl_ms = round(ttl_s * 1000)
        self._note = redis.register_script(_NOTE)

    async def note(self, scope: str, notes: Iterable[Note]) -> None:
        """Add up what happened, in one step; the last of `notes` counts as the latest use."""
        fields: list[str | int] = []
        for note in notes:
            image = note.image
            fields += [image.image_id, image.digest, image.width, image.height, image.look, note.uses]
        async with self._gate():
            await self._note(keys=_keys(scope), args=[self._ttl_ms, MAX_PICTURES, MAX_FILES, *fields])

    async def read(self, scope: str) -> list[Known]:
        """The pictures whose bytes are still here, the latest used first. Renews no life."""
        index, entries = _keys(scope)
        async with self._gate(), self._redis.pipeline(transaction=True) as pipe:
            pipe.zrange(index, 0, -1, desc=True, withscores=True)
            pipe.hgetall(entries)
            recent, values = await pipe.execute()
        known = [_unpack(name, score, values.get(name)) for name, score in recent]
        return await self._present(scope, [each for each in known if each is not None])

    async def _present(self, scope: str, known: Sequence[Known]) -> list[Known]:
        async with self._gate(), self._redis.pipeline(transaction=False) as pipe:
            for each in known:
                pipe.exists(blob_key(scope, each.image.image_id))
            there = await pipe.execute() if known else []
        return [each for each, kept in zip(known, there, strict=True) if kept]


def _keys(scope: str) -> list[str]:
    return [f"triptych:gallery:{{{scope}}}:{name}" for name in ("index", "entries")]


def _unpack(name: bytes, score: float, value: bytes | None) -> Known | None:
    # Whatever is no entry, or lost its other half to an eviction, is left out.
    try:
        content = json.loads(value or b"null")
        files = tuple(str(file) for file in content["files"])
        image = StoredImage(files[0], name.decode(), int(content["width"]), int(content["height"]), content["look"])
        return Known(image, files, int(content["uses"]), int(score))
    except (ValueError, TypeError, LookupError):
        return None
