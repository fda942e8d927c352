"""Brings a prompt's embeddings as they are announced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from services.prefill.embeddings import EmbeddingSource
from services.prefill.engine import PrefillEngine
from services.prefill.job import Job
from triptych.errors import InvalidArgumentError, TriptychError
from triptych.v1 import prefill_pb2, types_pb2


class ImageFeed:
    """Reads one call's `image_ready` messages and fetches; one picture may stand at several places of the prompt."""

    def __init__(self, engine: PrefillEngine, source: EmbeddingSource, begin: prefill_pb2.PrefillBegin) -> None:
        self._engine, self._source, self._begin = engine, source, begin
        self._leased = {span.embedding_key for span in begin.prompt.images}

    async def follow(self, job: Job, messages: AsyncIterator[prefill_pb2.PrefillRequest]) -> None:
        """Return when every image of `job` is there. UnavailableError when an announced embedding is nowhere."""
        places = _places(self._begin.prompt)
        try:
            async with asyncio.TaskGroup() as fetches:
                while places:
                    ready = await _next(messages)
                    if ready.embedding_key not in places:
                        raise InvalidArgumentError("an announced embedding is not awaited here", param="image_ready")
                    fetches.create_task(self._fetch(job, ready, places.pop(ready.embedding_key)))
        except* TriptychError as failed:
            raise failed.exceptions[0] from None

    async def close(self) -> None:
        """End the leases of embeddings that were not read: their KV was cached, or there will be no first token."""
        unread, self._leased = self._leased, set()
        await asyncio.gather(*(self._source.unlease(key, self._begin.request_id) for key in unread))

    async def _fetch(self, job: Job, ready: prefill_pb2.ImageReady, indices: list[int]) -> None:
        sequence = job.sequence
        if all(sequence.images[index].end <= sequence.num_computed for index in indices):
            # Its KV is there already, from an earlier request.
            return
        tensors = await self._source.get(ready, sequence.images[indices[0]].length, self._begin.request_id)
        self._leased.discard(ready.embedding_key)
        for index in indices:
            self._engine.image_ready(job, index, tensors)


async def _next(messages: AsyncIterator[prefill_pb2.PrefillRequest]) -> prefill_pb2.ImageReady:
    async for message in messages:
        return message.image_ready
    raise InvalidArgumentError("the caller left before every image was announced", param="image_ready")


def _places(prompt: types_pb2.Prompt) -> dict[str, list[int]]:
    """Where each embedding goes: indices of the images that show it."""
    places: dict[str, list[int]] = {}
    for index, span in enumerate(prompt.images):
        if prompt.images[places.setdefault(span.embedding_key, [index])[0]].length != span.length:
            raise InvalidArgumentError("one embedding has two lengths", param="prompt.images")
        if index not in places[span.embedding_key]:
            places[span.embedding_key].append(index)
    return places
