"""Fifty pictures of one size at once: no answer is that of another picture."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from common.models.tower import Tower
from tests.checkpoints import CheckpointCache
from tests.integration.test_hand_over import greedy
from tests.pictures import noise
from tests.workers import Pair, Picture, running_pair
from triptych.v1.types_pb2 import Prompt

COUNT, AT_ONCE = 50, 16
QUESTION = [83, 85, 89, 97]


@pytest.fixture
def model(checkpoints: CheckpointCache) -> Path:
    return checkpoints.get("qwen2_vl")


@pytest.fixture
async def pair(model: Path, valkey_url: str) -> AsyncIterator[Pair]:
    async with running_pair(model, valkey_url, prefill={"blocks": 512}, decode={"blocks": 512}) as pair:
        yield pair
        assert await pair.idle(), "blocks or requests were left behind"


async def prompts(pair: Pair, model: Path) -> list[Prompt]:
    """The same question about each picture; their token ids are all equal."""
    tower = Tower.load(model, torch.float32, torch.device("cpu"))
    prepared = [tower.preprocess(noise(32, 32, seed)) for seed in range(COUNT)]
    found = []
    for number, tensors in enumerate(tower.encode(prepared)):
        picture = Picture(f"{number:064x}", 32, 32, tensors)
        await pair.put(picture)
        found.append(pair.prompt([*QUESTION, pair.family.image_token_id, *QUESTION * 5], [picture]))
    return found


async def test_pictures_asked_about_together_are_answered_as_alone(pair: Pair, model: Path) -> None:
    asked, slots = await prompts(pair, model), asyncio.Semaphore(AT_ONCE)

    async def ask(prompt: Prompt) -> list[int]:
        async with slots:
            return (await pair.ask(prompt, greedy(4))).token_ids

    together = await asyncio.gather(*map(ask, asked))
    for prompt in asked:
        prompt.cache_scope = secrets.token_hex(32)
    alone = [await ask(prompt) for prompt in asked]
    assert together == alone
    assert len({tuple(prompt.token_ids) for prompt in asked}) == 1
    assert len(set(map(tuple, alone))) > COUNT // 2
