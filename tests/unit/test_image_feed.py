"""Which announced embeddings prefill fetches, and which it can do without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from common.families.base import ImageSpan
from services.prefill.embeddings import EmbeddingSource
from services.prefill.engine import PrefillEngine
from services.prefill.images import ImageFeed
from services.prefill.job import Job
from tests.scheduling import prefill_job
from triptych.errors import InvalidArgumentError, UnavailableError
from triptych.v1.prefill_pb2 import ImageReady, PrefillBegin, PrefillRequest
from triptych.v1.types_pb2 import ImageSpan as WireSpan
from triptych.v1.types_pb2 import Prompt

SPANS = (ImageSpan(2, 4, ()), ImageSpan(8, 4, ()), ImageSpan(14, 4, ()))
KEYS = ("a", "b", "a")


class Ends:
    """Both ends of a feed: what is asked of the source, and the places that the engine is told of."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.ready: list[int] = []

    async def get(self, ready: ImageReady, rows: int, request: str) -> dict[str, Any]:
        self.asked.append(("get", ready.embedding_key))
        if ready.held_at:
            raise UnavailableError("gone")
        return {}

    async def unlease(self, key: str, request: str) -> None:
        self.asked.append(("unlease", key))

    def image_ready(self, job: object, index: int, tensors: object) -> None:
        self.ready.append(index)


async def announced(*keys: str, held_at: str = "") -> AsyncIterator[PrefillRequest]:
    for key in keys:
        yield PrefillRequest(image_ready=ImageReady(embedding_key=key, held_at=held_at))


def feed_of(ends: Ends) -> ImageFeed:
    """A prompt with three pictures, the first and the last the same."""
    images = [
        WireSpan(offset=at.offset, length=at.length, embedding_key=key) for at, key in zip(SPANS, KEYS, strict=True)
    ]
    begin = PrefillBegin(request_id="r", prompt=Prompt(images=images))
    return ImageFeed(cast(PrefillEngine, ends), cast(EmbeddingSource, ends), begin)


def job_of(num_computed: int = 0) -> Job:
    """That prompt, of which so many tokens have their KV."""
    job = prefill_job(20, SPANS)
    job.sequence.num_computed = num_computed
    return job


async def follow(num_computed: int, *keys: str) -> Ends:
    ends = Ends()
    feed = feed_of(ends)
    await feed.follow(job_of(num_computed), announced(*keys))
    await feed.close()
    return ends


async def test_a_picture_at_two_places_is_fetched_once() -> None:
    ends = await follow(0, "b", "a")
    assert (ends.asked, ends.ready) == ([("get", "b"), ("get", "a")], [1, 0, 2])


async def test_what_is_computed_everywhere_is_not_fetched() -> None:
    ends = await follow(12, "a", "b")
    assert (ends.asked, ends.ready) == ([("get", "a"), ("unlease", "b")], [0, 2])
    assert sorted((await follow(18, "a", "b")).asked) == [("unlease", "a"), ("unlease", "b")]


async def test_a_picture_that_is_only_partly_computed_is_fetched() -> None:
    assert (await follow(11, "a", "b")).asked == [("get", "a"), ("get", "b")]


@pytest.mark.parametrize("keys", [("a",), ("a", "a"), ("c", "a", "b")])
async def test_too_few_twice_or_foreign_is_refused(keys: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        await follow(0, *keys)


async def test_leases_of_what_was_not_announced_end_with_the_prompt() -> None:
    """The first token came before: the KV of the other picture was cached."""
    ends = Ends()
    feed = feed_of(ends)
    following = asyncio.create_task(feed.follow(job_of(), only_then_silent("b")))
    while not ends.asked:  # noqa: ASYNC110 nothing tells us
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await feed.close()
    await feed.close()
    assert ends.asked == [("get", "b"), ("unlease", "a")]


async def only_then_silent(*keys: str, held_at: str = "") -> AsyncIterator[PrefillRequest]:
    async for message in announced(*keys, held_at=held_at):
        yield message
    await asyncio.Event().wait()


async def test_leases_of_what_could_not_be_read_end_with_the_prompt() -> None:
    ends = Ends()
    feed = feed_of(ends)
    with pytest.raises(UnavailableError):
        await feed.follow(job_of(), only_then_silent("b", held_at="gone"))
    await feed.close()
    assert sorted(ends.asked) == [("get", "b"), ("unlease", "a"), ("unlease", "b")]
