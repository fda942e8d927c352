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
    """Reads `image_ready` messages and fetches; one picture may stand at several places of a prompt."""

    def __init__(self, engine: PrefillEngine, source: EmbeddingSource) -> None:
        self._engine = engine
        self._source = source

    async def follow(
        self, job: Job, begin: prefill_pb2.PrefillBegin, messages: AsyncIterator[prefill_pb2.PrefillRequest]
    ) -> None:
        """Return when every image is there. UnavailableError when an announced embedding is nowhere."""
        places = _places(begin.prompt)
        try:
            async with asyncio.TaskGroup() as fetches:
                while places:
                    ready = await _next(messages)
                    if ready.embedding_key not in places:
                        raise InvalidArgumentError("an announced embedding is not awaited here", param="image_ready")
                    indices = places.pop(ready.embedding_key)
                    fetches.create_task(self._fetch(job, ready, indices, begin.request_id))
        except* TriptychError as failed:
            raise failed.exceptions[0] from None

    async def _fetch(self, job: Job, ready: prefill_pb2.ImageReady, indices: list[int], request: str) -> None:
        if all(job.sequence.images[index].end <= job.sequence.num_computed for index in indices):
            # Its KV is there already, from an earlier request.
            await self._source.forgo(ready, request)
            return
        tensors = await self._source.get(ready, job.sequence.images[indices[0]].length, request)
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
