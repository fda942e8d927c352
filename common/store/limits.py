"""What the server itself allows, read from it once."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import ResponseError

_NAME = "proto-max-bulk-len"


class ServerLimits:
    """The largest value that the server takes. Sent one byte more, it closes the connection."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._largest: float | None = None

    async def largest(self) -> float:
        """In bytes; infinite where we may not ask. Raises what redis-py raises while the server does not answer."""
        if self._largest is None:
            self._largest = await self._ask()
        return self._largest

    async def _ask(self) -> float:
        try:
            answer = await self._redis.config_get(_NAME)
        except ResponseError:
            # An ACL or a managed service forbids CONFIG; then writing shows it.
            return float("inf")
        values = [float(value) for value in answer.values() if value is not None]
        return min(values, default=float("inf"))
