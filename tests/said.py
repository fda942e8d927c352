"""What a process of its own says on stderr, such as the address that it chose."""

from __future__ import annotations

import asyncio
import re

PATIENCE_S = 120


async def said(process: asyncio.subprocess.Process, pattern: str) -> str:
    """The first group of `pattern` in the first line that has it."""
    assert process.stderr is not None
    before = b""
    async with asyncio.timeout(PATIENCE_S):
        while line := await process.stderr.readline():
            if found := re.search(pattern, line.decode()):
                return found[1]
            before += line
    raise AssertionError(before.decode())
