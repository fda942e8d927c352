"""Turns a request into a job, or refuses it before any worker is bothered."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

from common.families import ImageSpan
from common.identity import embedding_key
from common.store.images import StoredImage
from services.router.caller import Caller
from services.router.job import Job
from services.router.parts import Parts
from services.router.pictures.images import Images
from services.router.placing.placement import Placement
from services.router.prompts.prompt import characters, image_uses, pieces, token_ids
from services.router.sampling import check_prompt_length, resolve_sampling
from services.router.waiting.queue import MOST_PRIORITY
from triptych.errors import ContextLengthError, InvalidArgumentError, ModelNotFoundError
from triptych.v1 import types_pb2
from triptych.v1.encoder_pb2 import EncodeImage
from triptych.v1.router_pb2 import GenerateRequest, TokenizeResponse
from triptych.v1.types_pb2 import Prompt
from triptych.v1.worker_pb2 import WorkerInfo

# A tokenizer may shorten a text before it cuts it, for example by composing accents.
SLACK = 2
AT_ONCE = 8192
"""Characters that are tokenized on the event loop, in a millisecond or two: a thread costs half of one to ask."""
PIECES_AT_ONCE = 128
"""Messages, their parts and calls, for the same reason: the template writes something around each."""


class Admission:
    """The checks and the arithmetic of a request; awaits only the image store and a thread for tokenizing."""

    def __init__(self, parts: Parts, images: Images, placement: Placement) -> None:
        self._parts, self._images, self._placement = parts, images, placement

    async def admit(self, request: GenerateRequest, caller: Caller) -> Job:
        """A job; raises the error that the client shall see."""
        scope, names, images = await self._pictures(request, caller)
        encoders = self._placement.encoders() if names else []
        ids, spans = await self._tokens(request, images, scope)
        keys = _keys(images, scope, encoders)
        return Job(
            request_id=uuid.uuid4().hex,
            prompt=_prompt(ids, spans, keys, scope),
            sampling=resolve_sampling(request.sampling, len(ids), self._parts.defaults),
            images=_encode_images(images, spans, keys, scope),
            encoders=tuple(encoders),
            deadline=caller.deadline,
            names={image.image_id: name for image, name in zip(images, names, strict=True)},
            pictures=dict(zip(names, images, strict=True)),
            tenant=caller.tenant,
            weight=caller.weight,
            priority=_priority(request.priority),
        )

    async def tokenize(self, request: GenerateRequest, caller: Caller) -> TokenizeResponse:
        """The prompt, every picture expanded; raises as `admit` does."""
        scope, names, images = await self._pictures(request, caller)
        encoders = self._placement.encoders() if names else []
        ids, spans = await self._tokens(request, images, scope)
        prompt = _prompt(ids, spans, _keys(images, scope, encoders), scope)
        size = self._placement.block_size()
        return TokenizeResponse(token_ids=prompt.token_ids, images=prompt.images, block_size=size)

    async def _pictures(self, request: GenerateRequest, caller: Caller) -> tuple[str, list[str], list[StoredImage]]:
        """The request's scope, the names of its pictures as the client gave them, and the pictures."""
        self.check_model(request.model)
        uses = image_uses(request, self._parts.card.max_images)
        self._check_length(request)
        scope = caller.scope(request.cache_salt if request.HasField("cache_salt") else None)
        names = [use.digest for use in uses]
        known = await self._images.get(scope, names)
        return scope, names, [known[name] for name in names]

    def check_model(self, name: str) -> None:
        """ModelNotFoundError unless the name is empty or the one served."""
        served = self._parts.card.name
        if name not in ("", served):
            raise ModelNotFoundError(f"the model {name!r} is not served here; {served!r} is", param="model")

    def _check_length(self, request: GenerateRequest) -> None:
        """Refuse by its length alone what cannot fit: tokenizing megabytes keeps every other request waiting."""
        context = self._parts.card.context_length
        check_prompt_length(len(request.prompt.token_ids), context)
        length = characters(request)
        if length > SLACK * context * self._parts.tokenizer.longest_token:
            raise ContextLengthError(
                f"the texts have {length} characters; the {context} tokens of the context cannot say as much",
                param="messages",
            )

    async def _tokens(
        self, request: GenerateRequest, images: Sequence[StoredImage], scope: str
    ) -> tuple[list[int], list[ImageSpan]]:
        with self._parts.tokenizer.reserved() as free:
            if free and characters(request) <= AT_ONCE and pieces(request) <= PIECES_AT_ONCE:
                return self._expand(request, images, scope)
        return await asyncio.to_thread(self._expand, request, images, scope)

    def _expand(
        self, request: GenerateRequest, images: Sequence[StoredImage], scope: str
    ) -> tuple[list[int], list[ImageSpan]]:
        parts = self._parts
        layouts = [parts.family.layout(image.width, image.height) for image in images]
        return parts.family.expand(token_ids(request, parts.renderer, parts.tokenizer, scope), layouts)


def _priority(priority: int) -> int:
    if abs(priority) > MOST_PRIORITY:
        raise InvalidArgumentError(f"priority is from -{MOST_PRIORITY} to {MOST_PRIORITY}", param="priority")
    return priority


def _keys(images: Sequence[StoredImage], scope: str, encoders: Sequence[WorkerInfo]) -> list[str]:
    """Embedding keys in order. No supported family looks differently for another `detail`, so it is no part of them."""
    return [
        embedding_key(
            image.image_id,
            model_fingerprint=encoders[0].model_fingerprint,
            preprocessing_fingerprint=encoders[0].preprocessing_fingerprint,
            dtype=encoders[0].dtype,
            scope=scope,
        )
        for image in images
    ]


def _prompt(ids: Sequence[int], spans: Sequence[ImageSpan], keys: Sequence[str], scope: str) -> Prompt:
    images = [
        types_pb2.ImageSpan(offset=span.offset, length=span.length, grid=span.grid, embedding_key=key)
        for span, key in zip(spans, keys, strict=True)
    ]
    return Prompt(token_ids=ids, images=images, cache_scope=scope)


def _encode_images(
    images: Sequence[StoredImage], spans: Sequence[ImageSpan], keys: Sequence[str], scope: str
) -> tuple[EncodeImage, ...]:
    """One a distinct key: several uses, or several files, of one picture are encoded once."""
    distinct: Mapping[str, EncodeImage] = {
        key: EncodeImage(
            embedding_key=key,
            image_id=image.image_id,
            cache_scope=scope,
            tokens=span.length,
            width=image.width,
            height=image.height,
        )
        for image, span, key in zip(images, spans, keys, strict=True)
    }
    return tuple(distinct.values())
