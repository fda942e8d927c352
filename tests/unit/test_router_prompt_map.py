"""The map of a prompt: where its runs begin and what they say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.figures.prompt_map import prompt_map
from triptych.v1.types_pb2 import ImageSpan, Prompt, PromptRun, PromptSource, Usage

READ, CREATED, UNCACHED = (
    PromptSource.PROMPT_SOURCE_READ,
    PromptSource.PROMPT_SOURCE_CREATED,
    PromptSource.PROMPT_SOURCE_UNCACHED,
)


def runs(length: int, read: int, created: int, *images: tuple[int, int, str], encoded: str = "none") -> list[PromptRun]:
    spans = [ImageSpan(offset=offset, length=size, embedding_key=key) for offset, size, key in images]
    usage = Usage(prompt_tokens=length, cache_read_tokens=read, cache_creation_tokens=created)
    prompt = Prompt(token_ids=range(length), images=spans)
    return list(prompt_map(prompt, usage, {key: f"id of {key}" for _, _, key in images}, {encoded}))


def test_text_has_a_run_per_source() -> None:
    assert [(run.tokens, run.source) for run in runs(40, 16, 16)] == [(16, READ), (16, CREATED), (8, UNCACHED)]


def test_a_picture_is_cut_where_its_source_changes() -> None:
    found = [(run.tokens, run.source, run.image_id) for run in runs(40, 16, 24, (10, 20, "a"))]
    assert found == [(10, READ, ""), (6, READ, "id of a"), (14, CREATED, "id of a"), (10, CREATED, "")]


def test_a_run_says_whether_its_picture_was_encoded_now() -> None:
    found = {run.image_id: run.encoded for run in runs(30, 0, 30, (2, 5, "a"), (7, 5, "b"), encoded="b")}
    assert found == {"": False, "id of a": False, "id of b": True}


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 200), st.lists(st.integers(1, 20), max_size=5))
def test_runs_add_up_to_the_prompt(length: int, read: int, created: int, sizes: list[int]) -> None:
    read, created = min(read, length), min(created, length - min(read, length))
    images, at = [], 0
    for size in sizes:
        if at + size <= length:
            images.append((at, size, f"key {at}"))
            at += size + 1
    found = runs(length, read, created, *images)
    assert sum(run.tokens for run in found) == length
    assert sum(run.tokens for run in found if run.source == READ) == read
    assert sum(run.tokens for run in found if run.image_id) == sum(size for _, size, _ in images)
