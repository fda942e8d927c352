"""Cached blocks by hash for readers that do not answer: a pull that is answered here, as its frames are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from common.kv.filling import CREDITS
from common.kv.frames import FetchFrame, Frame, PullFrame
from common.kv.serving import Shelf, serve_pull
from common.kv.wire import Slab, to_ranges
from triptych.v1 import kv_pb2


async def serve_fetch(request: kv_pb2.FetchRequest, shelf: Shelf) -> AsyncGenerator[FetchFrame, None]:
    """How many leading blocks there are, then all of their chunks.

    Raises what `serve_pull` raises, and FailedPreconditionError where KV may only go through shared memory.
    A chunk counts as received when the next one is asked for, so nothing is repaired, and a reader that stops taking
    them loses its hold on the blocks as a silent peer does.
    """
    shelf = replace(shelf, transport=shelf.transport.inline())
    answers: asyncio.Queue[kv_pb2.PullRequest] = asyncio.Queue()
    begin = kv_pb2.PullBegin(block_hashes=request.block_hashes, layout=request.layout)
    answers.put_nowait(kv_pb2.PullRequest(begin=begin))
    async with aclosing(serve_pull(_drained(answers), shelf)) as frames:
        async for frame in frames:
            if frame.kind != "end":
                yield _fetched(frame)
            answers.put_nowait(_answer(frame, shelf.cache.layout.layers))


async def _drained(answers: asyncio.Queue[kv_pb2.PullRequest]) -> AsyncGenerator[kv_pb2.PullRequest, None]:
    while True:
        yield await answers.get()


def _fetched(frame: PullFrame) -> FetchFrame:
    if frame.kind == "chunk":
        return Frame(kv_pb2.FetchResponse(chunk=frame.message.chunk), frame.payload)
    return Frame(kv_pb2.FetchResponse(found=kv_pb2.HaveResponse(num_blocks=frame.message.header.num_blocks)))


def _answer(frame: PullFrame, num_layers: int) -> kv_pb2.PullRequest:
    if frame.kind == "chunk":
        return kv_pb2.PullRequest(received=kv_pb2.PushReceived(seq=frame.message.chunk.seq))
    if frame.kind == "end":
        return kv_pb2.PullRequest(acknowledged=kv_pb2.PushAcknowledged())
    missing = to_ranges([Slab(0, num_layers, 0, frame.message.header.num_blocks)])
    return kv_pb2.PullRequest(opened=kv_pb2.PushOpened(missing=missing, credits=CREDITS))
