"""Which parts of a prompt came from which cache, as runs of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from triptych.v1.types_pb2 import Prompt, PromptRun, PromptSource, Usage


def prompt_map(
    prompt: Prompt, usage: Usage, image_ids: Mapping[str, str], encoded: Collection[str]
) -> Iterator[PromptRun]:
    """Runs that add up to the prompt. `image_ids` gives the picture of an embedding key, `encoded` are those made now.

    The cached part is always the beginning of a prompt, and what fills no block its end.
    """
    at = 0
    edges = {start for start, _ in _sources(usage)}
    edges |= {edge for image in prompt.images for edge in (image.offset, image.offset + image.length)}
    for edge in sorted(edges | {usage.prompt_tokens}):
        if edge > at:
            key = next((i.embedding_key for i in prompt.images if i.offset <= at < i.offset + i.length), "")
            source = next(source for start, source in reversed(_sources(usage)) if start <= at)
            yield PromptRun(tokens=edge - at, source=source, image_id=image_ids.get(key, ""), encoded=key in encoded)
            at = edge


def _sources(usage: Usage) -> list[tuple[int, PromptSource.ValueType]]:
    """Where each source begins, in tokens."""
    read, created = usage.cache_read_tokens, usage.cache_creation_tokens
    return [
        (0, PromptSource.PROMPT_SOURCE_READ),
        (read, PromptSource.PROMPT_SOURCE_CREATED),
        (read + created, PromptSource.PROMPT_SOURCE_UNCACHED),
    ]
