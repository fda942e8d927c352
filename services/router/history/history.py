"""What has been asked lately: each finished request is compared with what came before it, for whoever asks why."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from common.identity.blocks import KeyedSpan
from common.store.images import StoredImage
from services.router.history.divergence import first_divergence
from services.router.history.turns import STRIDE, Part, Said, Turn, Turns, beginnings_of
from services.router.job import Job
from triptych.digests import digest, file_digest
from triptych.v1.router_pb2 import Explanation, GenerateRequest
from triptych.v1.types_pb2 import ContentPart, Usage

KEPT = 512
"""Requests that can be explained, over all scopes."""
TOOLS_TAG = "triptych.tools.v1"


class History:
    """Bounded by `max_bytes` for what is compared, and by KEPT for what is told. Scopes never see each other."""

    def __init__(self, max_bytes: int, block_size: Callable[[], int]) -> None:
        self._turns = Turns(max_bytes)
        self._block_size = block_size
        self._latest: deque[tuple[str, Explanation]] = deque(maxlen=KEPT)

    def finished(self, request: GenerateRequest, job: Job, usage: Usage, answer_ids: Sequence[int]) -> None:
        """Add to the account of a request where it diverged, and remember it."""
        scope, session = job.prompt.cache_scope, request.session_id
        spans = [KeyedSpan(span.offset, span.length, span.embedding_key) for span in job.prompt.images]
        token_ids = job.token_ids + array("I", answer_ids)
        # Hashed once for both: those of the prompt are looked up, and all are remembered.
        beginnings = [] if session else beginnings_of(scope, token_ids, spans)
        earlier = self._turns.previous(scope, session, beginnings[: job.prompt_tokens // STRIDE])
        number = (earlier.number if earlier else 0) + 1 if session else 0
        turn = Turn(
            request_id=job.request_id,
            number=number,
            token_ids=token_ids,
            prompt_tokens=job.prompt_tokens,
            spans=tuple(spans),
            messages=tuple(_said(request, job.pictures)),
            tools=_tools(request),
        )
        if earlier is not None:
            found = first_divergence(earlier, turn, usage.cache_read_tokens, self._block_size() or 1)
            usage.first_divergence.CopyFrom(found)
        self._turns.put(scope, session, turn, beginnings)
        self._latest.append((scope, _explanation(request, job, usage)))

    def latest(self, scope: str, count: int, session: str) -> list[Explanation]:
        """The last requests of a scope, of one session only if one is named, the latest first."""
        fitting = (each for held, each in reversed(self._latest) if held == scope)
        wanted = [each for each in fitting if session in ("", each.session_id)]
        return wanted[:count]


def _explanation(request: GenerateRequest, job: Job, usage: Usage) -> Explanation:
    told = Explanation(
        request_id=request.request_id or job.request_id,
        session_id=request.session_id,
        finished_unix_ms=time.time_ns() // 10**6,
        usage=usage,
    )
    told.usage.ClearField("prompt_map")
    return told


def _said(request: GenerateRequest, pictures: dict[str, StoredImage]) -> list[Said]:
    return [
        Said(message.role, tuple(_part(part, pictures) for part in message.content)) for message in request.messages
    ]


def _part(part: ContentPart, pictures: dict[str, StoredImage]) -> Part:
    """Texts only by their digest: what was said is nobody's business here."""
    if part.HasField("text"):
        return Part(text=file_digest(part.text.encode()))
    known = pictures[part.image.digest]
    return Part(image_id=known.image_id, file=known.digest, look=known.look)


def _tools(request: GenerateRequest) -> str:
    tools = [tool.SerializeToString(deterministic=True) for tool in request.tools]
    return digest(TOOLS_TAG, *tools) if tools else ""
