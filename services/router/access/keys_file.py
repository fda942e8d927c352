"""Keeps the keys file as it is on disk now, without a restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from services.router.access.tenants import Tenants, parse_tenants
from triptych.errors import ConfigError

log = logging.getLogger(__name__)
POLL_S = 1.0
Signature = tuple[int, int, int]


class KeysFile:
    """`tenants` is what the file said when it last made sense. A file that does not is logged once, and tried again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_as = _signature(path)
        self._complaint = ""
        self.tenants: Tenants = _read(path)

    def refresh(self) -> bool:
        """Read the file if it has changed; whether new content is in force."""
        if (now := _signature(self._path)) == self._read_as:
            self._complaint = ""
            return False
        try:
            self.tenants = _read(self._path)
        except ConfigError as error:
            self._complain(error.message)
            return False
        self._read_as, self._complaint = now, ""
        log.info("the keys file was read again: %d API keys", len(self.tenants.keys))
        return True

    async def watch(self) -> None:
        """Refresh every second, for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.refresh)

    def _complain(self, message: str) -> None:
        if message != self._complaint:
            log.warning("the old API keys stay in force: %s", message)
        self._complaint = message


def _signature(path: Path) -> Signature | None:
    try:
        # Follows links: Kubernetes replaces a mounted secret by moving one.
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(path: Path) -> Tenants:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys file {path} cannot be read ({type(error).__name__})") from None
    return parse_tenants(text)
