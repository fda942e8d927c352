"""The cluster as read from the registry: entries in, workers out. Awaits nothing, reads no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import json_format

from common.store.registry import GONE
from triptych.v1.worker_pb2 import WorkerInfo


@dataclass(frozen=True)
class Entry:
    """One registry entry as read: its raw value and when it expires, in milliseconds of the server's clock."""

    value: bytes
    expires_ms: float


@dataclass
class _Seen:
    info: WorkerInfo
    entry: Entry
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
        info = self._read(name, entry.value)
        if info is None:
            # Whoever says nothing sensible any more, for example no address, is not where it was before either.
            self._seen.pop(name, None)
            self.malformed += 1
            return
        self._seen[name] = _Seen(info, entry)

    def _read(self, name: str, value: bytes) -> WorkerInfo | None:
        known = self._seen.get(name)
        # Most say the same again and again, and parsing it takes longer than everything else here.
        return known.info if known is not None and known.entry.value == value else _parse(name, value)

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
        # A restarted process may listen where its killed predecessor did: the latest heartbeat owns the address. A
        # process of several stages has an entry for each of its roles.
        newest: dict[tuple[str, int], _Seen] = {}
        for seen in sorted(self._seen.values(), key=lambda seen: seen.entry.expires_ms):
            newest[seen.info.address, seen.info.role] = seen
        return tuple(sorted((seen.info for seen in newest.values()), key=lambda info: info.instance_id))


def _parse(name: str, value: bytes) -> WorkerInfo | None:
    try:
        info = json_format.Parse(value, WorkerInfo(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError):
        return None
    return info if info.instance_id == name and info.address and info.role else None
