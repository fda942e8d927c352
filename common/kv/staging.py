"""Memory through which KV goes to processes on the same host: a sealed memory file of the sender, cut into slots.

A memory file has no name: it vanishes with the last process that has it open or mapped, also after SIGKILL, so nothing
can leak. Receivers open it through /proc, which works exactly where host and process namespace are shared; containers
of their own therefore do not match, and use gRPC.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import mmap
import os
import secrets
import weakref
from pathlib import Path
from typing import Literal

from triptych.v1 import kv_pb2

KvTransport = Literal["auto", "grpc", "shm"]

NUM_SLOTS = 8
HEADER_BYTES = 4096
_NAME = "triptych-kv"
# Without these a sender could cut the file under a receiver that reads it, which kills the receiver (SIGBUS).
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@functools.cache
def host_id() -> str:
    """Boot of the kernel and process namespace; empty where they cannot be told, which matches nobody."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


class Staging:
    """The slots of one process, shared by all of its transfers and waited for in order.

    A slot is taken for one chunk and given back when that chunk is answered, so transfers whose receivers live all go
    on with few slots. Pages cost memory once touched.
    """

    def __init__(self, slot_bytes: int, num_slots: int = NUM_SLOTS) -> None:
        self.slot_bytes = slot_bytes
        self._fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._close = weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, HEADER_BYTES + slot_bytes * num_slots)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self._fd, 0)
        self._token = secrets.token_bytes(32)
        self._map[: len(self._token)] = self._token
        # The slot used last goes first: few slots are ever touched, and those stay in the caches.
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(num_slots)):
            self._free.put_nowait(slot)
        self.num_slots = num_slots

    @property
    def num_free(self) -> int:
        """Slots that nobody uses."""
        return self._free.qsize()

    def offer(self) -> kv_pb2.StagingOffer:
        """What a receiver needs to know to map it."""
        return kv_pb2.StagingOffer(
            host_id=host_id(),
            pid=os.getpid(),
            fd=self._fd,
            token=self._token,
            header_bytes=HEADER_BYTES,
            slot_bytes=self.slot_bytes,
            num_slots=self.num_slots,
        )

    async def take(self) -> int:
        """Wait for a slot."""
        return await self._free.get()

    def give(self, slot: int) -> None:
        """Return a slot, once."""
        self._free.put_nowait(slot)

    def view(self, slot: int, size: int) -> memoryview:
        """The first `size` bytes of a slot, writable."""
        begin = HEADER_BYTES + slot * self.slot_bytes
        return memoryview(self._map)[begin : begin + size]


class StagingView:
    """Another process's slots, read-only."""

    def __init__(self, mapped: mmap.mmap, offer: kv_pb2.StagingOffer) -> None:
        self._map = mapped
        self._offer = offer

    @classmethod
    def open(cls, offer: kv_pb2.StagingOffer) -> StagingView | None:
        """Map what a sender offers; None when it is on another host, or not the file it should be."""
        if not offer.host_id or offer.host_id != host_id():
            return None
        try:
            mapped = _map(f"/proc/{offer.pid}/fd/{offer.fd}")
        except (OSError, ValueError):
            return None
        size = offer.header_bytes + offer.slot_bytes * offer.num_slots
        if mapped is None or len(mapped) != size or mapped[: len(offer.token)] != offer.token or not offer.token:
            return None
        return cls(mapped, offer)

    def read(self, slot: int, size: int) -> memoryview | None:
        """The first `size` bytes of a slot; None when there are not as many."""
        if slot >= self._offer.num_slots or size > self._offer.slot_bytes:
            return None
        begin = self._offer.header_bytes + slot * self._offer.slot_bytes
        return memoryview(self._map)[begin : begin + size]


def _map(path: str) -> mmap.mmap | None:
    # Looked at before it is opened: opening some stranger's pipe or device could block or do something.
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            return None
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
