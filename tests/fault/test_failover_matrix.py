"""Whoever dies, and whenever: the answer is the same, to the token, and nothing is left over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.checkpoints import CheckpointCache
from tests.fault.cluster import ROLES, Cluster, running_cluster
from tests.pictures import noise, save
from triptych import Answer, Image

VICTIMS = (*ROLES, "redis", "router")
POINTS = ("before", "encode", "prefill", "transfer", "tokens")
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.0, "seed": 7}}
TOKENS = 12
CELLS = [(victim, point, sampling) for victim in VICTIMS for point in POINTS for sampling in SAMPLINGS]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(checkpoints: CheckpointCache) -> AsyncIterator[Cluster]:
    async with running_cluster(checkpoints.get("qwen2_vl")) as cluster:
        yield cluster


def prompt(cell: int) -> list[str | Image]:
    """A question with a picture that nobody has seen before."""
    picture = Image.from_bytes(save(noise(90, 60, seed=cell), "PNG"))
    return ["look at this and tell " * 8, picture, f"what is number {cell}?"]


async def ask(cluster: Cluster, cell: int, sampling: str, router: int = 0) -> Answer:
    options = {"max_tokens": TOKENS, "ignore_eos": True, "top_logprobs": 0, **SAMPLINGS[sampling]}
    return await cluster.clients[router].generate(prompt(cell), **options).answer()


@pytest.mark.parametrize(("victim", "point", "sampling"), CELLS)
async def test_the_answer_is_the_same(cluster: Cluster, victim: str, point: str, sampling: str) -> None:
    cell = CELLS.index((victim, point, sampling))
    cluster.control.arm(point, lambda: cluster.kill(victim))
    if point == "before":
        await cluster.control.hit()
    try:
        answer = await ask(cluster, cell, sampling)
        assert cluster.control.hits == 1
        await cluster.idle()
    finally:
        # Also after a failure, which would otherwise be the next cells' as well.
        await cluster.repair(victim)
    undisturbed = await ask(cluster, cell, sampling)
    assert tokens(answer) == tokens(undisturbed)
    assert (answer.text, answer.finish_reason) == (undisturbed.text, undisturbed.finish_reason)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (undisturbed.usage.prompt_tokens, TOKENS)
    assert usage.cache_read_tokens + usage.cache_creation_tokens + usage.uncached_tokens == usage.prompt_tokens


def tokens(answer: Answer) -> list[int]:
    return [token.token_id for token in answer.tokens]
