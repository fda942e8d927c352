"""`python -m common.store.condition`: what a Redis says of its memory and its disk, as JSON. The URL comes by stdin."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common.store.client import connect, store_errors
from triptych.errors import TriptychError


async def condition(redis: Redis) -> dict[str, Any]:
    """UnavailableError when it does not answer. `snapshots` is empty where CONFIG is not allowed."""
    async with store_errors():
        info: dict[str, Any] = await redis.info()
        save = await _save(redis)
    return {
        "version": str(info["redis_version"]),
        "policy": info["maxmemory_policy"],
        "max_bytes": info["maxmemory"],
        "used_bytes": info["used_memory"],
        "append_only": bool(info["aof_enabled"]),
        "snapshots": save,
    }


async def _save(redis: Redis) -> str:
    try:
        found = await redis.config_get("save")
    except ResponseError:
        return ""
    return "".join(value or "" for value in found.values())


async def _ask(url: str) -> dict[str, Any]:
    async with aclosing(connect(url)) as redis:
        return await condition(redis)


def main() -> None:
    """One line of JSON; a failure is one sentence on stderr and status 1."""
    try:
        print(json.dumps(asyncio.run(_ask(sys.stdin.read().strip()))))  # noqa: T201
    except TriptychError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
