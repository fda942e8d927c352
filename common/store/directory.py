"""The registry of workers, reading side: a view of the cluster that outlives outages of Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from google.protobuf import json_format
from redis.asyncio import Redis

from common.store.client import WORKER_INDEX, end_task, store_errors, worker_key
from common.store.registry import GONE
from triptych.errors import UnavailableError
from triptych.v1.worker_pb2 import WorkerInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One registry entry as read: its raw value and when it expires, in milliseconds of the server's clock."""

    value: bytes
    expires_ms: float


@dataclass
class _Seen:
    info: WorkerInfo
    expires_ms: float
    missing_since: float | None = None


class View:
    """What is known of the cluster: entries in, workers out; time is given, nothing is awaited.

    A worker that vanished without a goodbye stays for `grace_s`: after a flush of Redis all of them vanish until
    their next heartbeat, and nobody should notice.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._seen: dict[str, _Seen] = {}
        self.workers: tuple[WorkerInfo, ...] = ()
        self.malformed = 0

    def update(self, entries: Mapping[str, Entry], now: float) -> bool:
        """Take in one reading of the registry at `now` (seconds, monotonic); True when `workers` changed."""
        for name, entry in entries.items():
            if entry.value == GONE:
                self._seen.pop(name, None)
            else:
                self._take(name, entry)
        self._forget(entries, now)
        before, self.workers = self.workers, self._live()
        return before != self.workers

    def _take(self, name: str, entry: Entry) -> None:
        info = _parse(name, entry.value)
        if info is None:
            self.malformed += 1
            return
        self._seen[name] = _Seen(info, entry.expires_ms)

    def _forget(self, entries: Mapping[str, Entry], now: float) -> None:
        # Counted from the first reading that lacks it: while Redis is down there are none, and nobody ages.
        for name, seen in list(self._seen.items()):
            if name in entries:
                continue
            if seen.missing_since is None:
                seen.missing_since = now
            if now - seen.missing_since > self._grace_s:
                del self._seen[name]

    def _live(self) -> tuple[WorkerInfo, ...]:
        # A restarted process may listen where its killed predecessor did: the latest heartbeat owns the address.
        newest: dict[str, _Seen] = {}
        for seen in sorted(self._seen.values(), key=lambda seen: seen.expires_ms):
            newest[seen.info.address] = seen
        return tuple(sorted((seen.info for seen in newest.values()), key=lambda info: info.instance_id))


def _parse(name: str, value: bytes) -> WorkerInfo | None:
    try:
        info = json_format.Parse(value, WorkerInfo(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError):
        return None
    return info if info.instance_id == name and info.address and info.role else None


class Directory:
    """Polls the registry: `start` in a running loop, read `workers()`, `close` at the end."""

    def __init__(self, redis: Redis, *, every_s: float = 0.5, grace_s: float = 2.0) -> None:
        self._redis, self._every_s = redis, every_s
        self._view = View(grace_s)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._up = True

    def start(self) -> None:
        """Begin to poll; does not wait for Redis."""
        self._task = asyncio.create_task(self._poll_forever(), name="registry-poll")

    def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers known now, in a stable order; while Redis is down, those known last."""
        return self._view.workers

    @property
    def malformed(self) -> int:
        """Readings of entries that were no description of their worker."""
        return self._view.malformed

    async def changed(self) -> None:
        """Return after the next change of `workers()`."""
        await self._changed.wait()

    async def poll(self) -> None:
        """Read the registry once, now."""
        try:
            async with store_errors():
                entries = await self._read()
        except UnavailableError as error:
            self._note(False, f"waiting for Redis, keeping the last view of the cluster: {error.message}")
            return
        self._note(True, "the registry is readable again")
        if self._view.update(entries, time.monotonic()):
            self._changed.set()
            self._changed = asyncio.Event()

    async def close(self) -> None:
        """Stop polling; twice is harmless."""
        task, self._task = self._task, None
        if task is not None:
            await end_task(task)

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:
                # The view of the cluster must not freeze because of one odd answer.
                log.exception("the registry could not be read")
            await asyncio.sleep(self._every_s)

    async def _read(self) -> dict[str, Entry]:
        index = cast(list[tuple[bytes, float]], await self._redis.zrange(WORKER_INDEX, 0, -1, withscores=True))
        names = [member.decode(errors="replace") for member, _ in index]
        values: list[bytes | None] = []
        if names:
            values = cast(list[bytes | None], await self._redis.mget([worker_key(name) for name in names]))
        found = zip(names, values, index, strict=True)
        return {name: Entry(value, score) for name, value, (_, score) in found if value is not None}

    def _note(self, up: bool, line: str) -> None:
        if up != self._up:
            log.warning(line)
        self._up = up
