"""`python -m tests.kv_process MODE BLOCKS`: a receiver of KV in a process of its own.

Prints a ticket in hex for all its blocks. A line on stdin makes it print a digest of the blocks and how often they were
delivered, then another ticket for the same blocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from typing import cast

from common.kv.staging import KvTransport
from tests.kv_ends import Receiver, content, serving


async def main(mode: KvTransport, blocks: int) -> None:
    """Serve until stdin ends."""
    receiver = Receiver(blocks, transport=mode)
    async with serving(receiver) as address:
        reserved = list(reversed(range(blocks)))
        say(receiver.ticket(reserved, address=address).SerializeToString().hex())
        while await asyncio.to_thread(sys.stdin.readline):
            say(f"{digest(content(receiver.cache, reserved))} {len(receiver.delivered)}")
            receiver.overwrite()
            say(receiver.ticket(reserved, address=address).SerializeToString().hex())


def say(line: str) -> None:
    """A line on stdout, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def digest(layers: list[bytes]) -> str:
    """One name for the content of blocks."""
    return hashlib.sha256(b"".join(layers)).hexdigest()


if __name__ == "__main__":
    asyncio.run(main(cast("KvTransport", sys.argv[1]), int(sys.argv[2])))
