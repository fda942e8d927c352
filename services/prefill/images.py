"""Brings a prompt's embeddings from the store as they are announced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from common.store.embeddings import EmbeddingStore
from services.prefill.engine import PrefillEngine
from services.prefill.job import Job
from triptych.errors import InvalidArgumentError, TriptychError, UnavailableError
from triptych.v1 import prefill_pb2, types_pb2


class ImageFeed:
    """Reads `image_ready` messages and fetches; one picture may stand at several places of a prompt."""

    def __init__(self, engine: PrefillEngine, store: EmbeddingStore) -> None:
        self._engine = engine
        self._store = store

    async def follow(
        self, job: Job, prompt: types_pb2.Prompt, messages: AsyncIterator[prefill_pb2.PrefillRequest]
    ) -> None:
        """Return when every image is there. UnavailableError when an announced embedding is not in the store."""
        places = _places(prompt)
        try:
            async with asyncio.TaskGroup() as fetches:
                while places:
                    key = await _next_key(messages)
                    if key not in places:
                        raise InvalidArgumentError("an announced embedding is not awaited here", param="image_ready")
                    fetches.create_task(self._fetch(job, key, places.pop(key)))
        except* TriptychError as failed:
            raise failed.exceptions[0] from None

    async def _fetch(self, job: Job, key: str, indices: list[int]) -> None:
        tensors = await self._store.get(key, rows=job.sequence.images[indices[0]].length)
        if tensors is None:
            raise UnavailableError("an embedding vanished from the store before prefill read it", retry_after_s=0.0)
        for index in indices:
            self._engine.image_ready(job, index, tensors)


async def _next_key(messages: AsyncIterator[prefill_pb2.PrefillRequest]) -> str:
    async for message in messages:
        return message.image_ready.embedding_key
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
