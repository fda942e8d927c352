"""What the router's metrics tell apart, and that nothing a caller chooses makes them grow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from services.router.figures.account import Account
from services.router.figures.breakdown import FEW, LABELS, MANY, OVERFLOW, Breakdown, Combinations, breakdown, bucket
from services.router.figures.metrics import Metrics
from services.router.figures.prompt_metrics import PromptMetrics
from triptych.conversation.rollover import block_of
from triptych.v1.encoder_pb2 import EncodeResponse
from triptych.v1.prefill_pb2 import PrefillResponse
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import (
    ContentPart,
    DivergenceKind,
    FirstDivergence,
    ImageSpan,
    Message,
    Prompt,
    StageTimes,
    Usage,
)

COUNTS = st.integers(0, 2**20)


def asked(*texts: str, **fields: Any) -> GenerateRequest:
    """A conversation in which only the user speaks."""
    messages = [Message(role="user", content=[ContentPart(text=text)]) for text in texts]
    return GenerateRequest(messages=messages, **fields)


@pytest.mark.parametrize(
    ("value", "name"), [(0, "0"), (1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-16"), (17, "17+"), (9999, "17+")]
)
def test_counts_fall_into_named_ranges(value: int, name: str) -> None:
    assert bucket(value, FEW) == name


def test_a_first_text_is_told_from_a_long_conversation_about_pictures() -> None:
    removed = FirstDivergence(kind=DivergenceKind.DIVERGENCE_KIND_IMAGE_REMOVED)
    usage = Usage(prompt_tokens=5000, images=3, visual_tokens=3000, first_divergence=removed)
    long = breakdown(asked(block_of(2, "x") + "go on", "b", context_policy="roll-over/1"), usage, "abc")
    assert long == Breakdown(
        "abc", "multi", "multimodal", "2-4", "1024-4095", "2-4", "yes", "yes", "4096-16383", "roll-over/1"
    )
    short = breakdown(asked("hello"), Usage(prompt_tokens=9), "abc")
    assert short == Breakdown("abc", "single", "text", "0", "0", "1", "no", "no", "1-255", "none")


@pytest.mark.parametrize(("given", "told"), [("", "none"), ("append-only/1", "append-only/1"), ("mine/7", "other")])
def test_policies_are_known_by_name(given: str, told: str) -> None:
    assert breakdown(asked("x", context_policy=given), Usage(), "r").context_policy == told


def test_combinations_end_somewhere() -> None:
    found = Combinations(most=2)
    kinds = [breakdown(asked("x"), Usage(prompt_tokens=count), "r") for count in MANY]
    counted = [found.admit(kind) for kind in (*kinds, kinds[0])]
    assert counted[2:] == [OVERFLOW] * (len(MANY) - 2) + [counted[0]]


def test_a_thousand_users_sessions_and_requests_add_no_series() -> None:
    """L13."""
    metrics, usage = Metrics(), Usage(prompt_tokens=300, uncached_tokens=300, times=StageTimes(total_ns=5))
    prompts = PromptMetrics(metrics.registry, lambda: "r")
    sizes = []
    for index in range(1000):
        own = {name: f"{name}-{index}" for name in ("request_id", "session_id", "cache_salt", "context_policy")}
        usage.first_divergence.earlier_request_id = f"{index}"
        with metrics.request():
            metrics.finished(usage)
            prompts.finished(asked(f"text {index}", **own), usage)
        sizes.append(len(metrics.render().splitlines()) if index in (0, 999) else 0)
    assert sizes[0] == sizes[-1] > 0


def test_tokens_are_counted_under_their_kind() -> None:
    registry = CollectorRegistry()
    prompts = PromptMetrics(registry, lambda: "r")
    prompts.finished(asked("x"), Usage(prompt_tokens=20, cache_read_tokens=16, uncached_tokens=4))
    lines = generate_latest(registry).decode().splitlines()
    read = [line for line in lines if line.startswith("triptych_router_prompt_tokens_total{") and "cache_read" in line]
    assert len(read) == 1 and read[0].endswith(" 16.0") and all(f'{label}="' in read[0] for label in LABELS)


@given(length=COUNTS, reads=st.lists(st.tuples(COUNTS, COUNTS), max_size=4), images=st.lists(st.integers(1, 99)))
def test_read_created_and_uncached_are_the_prompt(length: int, reads: list[tuple[int, int]], images: list[int]) -> None:
    account = Account(lambda: 0)
    for read, created in reads:
        account.prefilled(PrefillResponse(cache_read_tokens=read, cache_creation_tokens=created, compute_ns=1))
    for index in range(len(images)):
        account.encoded(EncodeResponse(embedding_key=str(index % 3)))
    spans = [ImageSpan(length=tokens, embedding_key=str(index % 3)) for index, tokens in enumerate(images)]
    usage = account.usage(Prompt(token_ids=range(length % 5000), images=spans))
    parts = usage.cache_read_tokens + usage.cache_creation_tokens + usage.uncached_tokens
    assert parts == usage.prompt_tokens == length % 5000
    assert usage.embedding_hits + usage.embedding_misses == usage.unique_images <= usage.images == len(images)


@given(gaps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1))
def test_every_token_but_the_first_ones_has_a_gap(gaps: list[tuple[int, int]]) -> None:
    now, seen = [0], list[int]()

    def note(gap_ns: int, tokens: int) -> None:
        seen.extend([gap_ns] * tokens)

    account = Account(lambda: now[0], gap=note)
    for tokens, step in gaps:
        now[0] += step
        account.received(tokens)
    assert len(seen) == sum(tokens for tokens, _ in gaps[1:]) and min(seen, default=0) >= 0
