"""Writes a large value as one SET in pieces, and one script right behind it.

redis-py joins a command's arguments into one buffer, and asyncio keeps another of what the socket did not take at once:
with tens of megabytes, fresh memory for both costs more than sending. In pieces, neither grows over a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

PIECE_BYTES = 2**20
Piece = bytes | memoryview
Argument = str | bytes | int


async def set_then(
    redis: Redis, name: str, pieces: Iterable[Piece], size: int, ttl_ms: int, script: Callable[[], tuple[Argument, ...]]
) -> Any:
    """The answer of EVAL `script()`, which runs after SET of `name`, also when that failed. Errors are redis-py's.

    `pieces` have `size` bytes together; `script` is asked for when all are sent. A connection whose answers were not
    all read is closed: nobody shall find them there.
    """
    pool = redis.connection_pool
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    try:
        await _send(connection, _head(name, size))
        for piece in pieces:
            await _send(connection, piece)
        await _send(connection, _tail(ttl_ms), *connection.pack_command("EVAL", *script()))
        await connection.read_response()
        return await connection.read_response()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


async def _send(connection: AbstractConnection, *pieces: Piece) -> None:
    # The annotation asks for bytes; what is wanted is what a socket takes.
    await connection.send_packed_command(cast(tuple[bytes, ...], pieces), check_health=False)


def _head(name: str, size: int) -> bytes:
    key = name.encode()
    return b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, size)


def _tail(ttl_ms: int) -> bytes:
    ttl = b"%d" % ttl_ms
    return b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl), ttl)
