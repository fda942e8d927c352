"""Whether Ray's object store fits into the shared memory of this host or container."""

from __future__ import annotations

import shutil
from pathlib import Path

from triptych.errors import ConfigError

SHARED = Path("/dev/shm")
_MIB = 2**20


def shared_memory_bytes(shared: Path = SHARED) -> int:
    """Its size; 0 where there is none."""
    return shutil.disk_usage(shared).total if shared.is_dir() else 0


def check_shared_memory(wanted: int, shared: Path = SHARED) -> None:
    """ConfigError when `wanted` bytes are not free: Ray would go on with files on a disk, and be very slow."""
    if not shared.is_dir():
        return
    free = shutil.disk_usage(shared).free
    if free < wanted:
        raise ConfigError(
            f"object-store wants {wanted // _MIB} MiB of shared memory, but {shared} has {free // _MIB} MiB free: "
            f"give the container more (docker run --shm-size={2 * wanted // _MIB}m, shm_size in compose)"
        )
