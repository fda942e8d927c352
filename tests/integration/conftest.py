"""What holds for the tests of this folder."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis


@pytest.fixture
async def redis(redis: Redis) -> Redis:
    """Emptied before each test."""
    await redis.flushdb()
    return redis
