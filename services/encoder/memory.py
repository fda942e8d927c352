"""How much memory a replica uses, on the device that its tower is on."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import psutil
import torch

_KIB = 1024


@dataclass(frozen=True)
class MemoryUse:
    """`device` for people; bytes now, and at most so far."""

    device: str
    now: int
    peak: int


def memory_use(device: torch.device) -> MemoryUse:
    """Torch's own account on a GPU; the process's resident memory on a CPU."""
    if device.type == "cuda":
        name = f"{device} {torch.cuda.get_device_name(device)}"
        return MemoryUse(name, torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    now = psutil.Process().memory_info().rss
    return MemoryUse(str(device), now, max(now, peak))
