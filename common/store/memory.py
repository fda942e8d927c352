"""A tier in this process's memory: values by key, bounded in bytes, the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class MemoryTier(Generic[Value]):
    """Holds verified values only; the caller says how many bytes each has. Awaits nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Value | None:
        """The value, which becomes the last to go; None when it is not here."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: str, value: Value, size: int) -> bool:
        """Keep it; False, and nothing changes, when it alone is over the limit."""
        if size > self._max_bytes:
            return False
        self.drop(key)
        self._values[key] = value, size
        self.bytes += size
        while self.bytes > self._max_bytes:
            self.drop(next(iter(self._values)))
        return True

    def drop(self, key: str) -> None:
        """Forget it; twice is harmless."""
        _, size = self._values.pop(key, (None, 0))
        self.bytes -= size
