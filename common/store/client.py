"""The one way to Redis: clients, error mapping and the names of keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.store.address import TIMEOUT_S, open_pool
from common.store.scripts import PREFIX
from triptych.errors import UnavailableError

RETRY_AFTER_S = 1.0
# The braces are hash tags: in a cluster, keys that one script touches must lie on one node.
WORKER_INDEX = "triptych:{workers}:index"


def worker_key(instance_id: str) -> str:
    """Description of one worker."""
    return f"triptych:{{workers}}:info:{instance_id}"


def record_key(scope: str, digest: str) -> str:
    """Record of a picture under its file digest or image id."""
    return f"triptych:image:{{{scope}:{digest}}}:record"


def blob_key(scope: str, image_id: str) -> str:
    """Uploaded bytes of a picture."""
    return f"triptych:image:{{{scope}:{image_id}}}:blob"


def embedding_key(key: str) -> str:
    """Value of an embedding; the scope is already in its key."""
    return f"{PREFIX}value:{key}"


def reservation_key(key: str) -> str:
    """Owner that is computing an embedding."""
    return f"{PREFIX}owner:{key}"


def lease_key(key: str) -> str:
    """Requests that need an embedding now."""
    return f"{PREFIX}lease:{key}"


def connect(url: str) -> Redis:
    """A pooled client; connects lazily, answers in bytes. ConfigError when the URL is malformed."""
    return Redis.from_pool(open_pool(url))


@asynccontextmanager
async def store_errors(timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
    """Limit the block to `timeout_s` and map every failure of Redis in it to UnavailableError.

    The only place where such failures enter. A call that times out or is cancelled drops its connection.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except (RedisError, OSError, TimeoutError) as exc:
        name = type(exc).__name__
        raise UnavailableError(f"the shared store does not work now ({name})", retry_after_s=RETRY_AFTER_S) from exc


async def reachable(redis: Redis) -> bool:
    """Whether Redis answers now."""
    try:
        async with store_errors():
            return bool(await redis.ping())
    except UnavailableError:
        return False


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel `task` until it has ended, even if a library inside it swallows a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)
