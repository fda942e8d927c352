"""Keeps memory that was freed for the next use, instead of giving it back to the kernel each time."""

from __future__ import annotations

import ctypes

MMAP_BYTES = 32 << 20
"""Largest piece that is taken from the heap: the most that glibc allows, and more than any message has."""
TRIM_BYTES = 64 << 20
"""Free memory at the end of a heap above which it is given back: a window of KV messages."""

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h


def keep_freed_memory() -> bool:
    """For the whole process, and idempotent; False where the C library is another than glibc, and nothing changes.

    A message of KV is allocated and freed several times on its way. By default each time maps new pages, and clearing
    them costs more than all the copying.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_TRIM, TRIM_BYTES) and mallopt(_MMAP, MMAP_BYTES))
