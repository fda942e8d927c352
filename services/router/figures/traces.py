"""What the router's spans say about a request: figures and names, no content."""

from __future__ import annotations

from services.router.job import Job
from triptych.v1.router_pb2 import GenerateFinished, GenerateRequest
from triptych.v1.types_pb2 import DivergenceKind, FinishReason

Attributes = dict[str, str | int]
NAME_CHARACTERS = 64


def asked(request: GenerateRequest, job: Job) -> Attributes:
    """Known once a request is admitted. Callers choose names, which may be long."""
    return {
        "request_id": job.request_id,
        "caller_request_id": request.request_id[:NAME_CHARACTERS],
        "session_id": request.session_id[:NAME_CHARACTERS],
        "prompt_tokens": job.prompt_tokens,
        "images": len(job.prompt.images),
        "answers": max(1, request.n),
    }


def answered(finished: GenerateFinished) -> Attributes:
    """Known at the end: the account."""
    usage = finished.usage
    return {
        "outcome": FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower(),
        "completion_tokens": usage.completion_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_creation_tokens": usage.cache_creation_tokens,
        "uncached_tokens": usage.uncached_tokens,
        "visual_tokens": usage.visual_tokens,
        "unique_images": usage.unique_images,
        "embedding_hits": usage.embedding_hits,
        "embedding_misses": usage.embedding_misses,
        "kv_transfer_bytes": usage.kv_transfer_bytes,
        "divergence": DivergenceKind.Name(usage.first_divergence.kind).removeprefix("DIVERGENCE_KIND_").lower(),
    }
