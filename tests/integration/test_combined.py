"""Prefill and decode in one process on one pool: the same answers, and no KV moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from common.models.tower import Tower
from tests.checkpoints import build_checkpoint
from tests.integration.test_hand_over import greedy, picture, reserve, text_prompt
from tests.reference import Reference, same_tokens
from tests.rendered import marked_ids
from tests.valkey import start_valkey
from tests.workers import Pair, running_combined
from triptych.errors import FailedPreconditionError

BLOCK = 16


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with start_valkey() as url:
        yield url


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("qwen3_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture
async def pair(model: Path, redis_url: str) -> AsyncIterator[Pair]:
    async with running_combined(model, redis_url, step_tokens=24) as pair:
        yield pair
        assert await pair.idle(), "blocks or requests were left behind"


async def test_images_give_the_reference_tokens(pair: Pair, model: Path, reference: Reference) -> None:
    tower = Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))
    images, pictures = zip(*(picture(tower, *each) for each in (("a", 70, 45, 1), ("b", 33, 90, 2))), strict=True)
    parts = [{"type": "image"}, {"type": "text", "text": "and then " * 9}, {"type": "image"}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    expected = reference.generate(messages, images, 10, ignore_eos=True)
    for each in pictures:
        await pair.put(each)
    answer = await pair.ask(pair.prompt(marked_ids(reference.tokenizer, pair.family, messages), pictures), greedy(10))
    assert same_tokens(expected, answer.token_ids)
    assert answer.account and answer.account.transfer_bytes == 0


@pytest.mark.parametrize("length", [3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1])
async def test_next_turn_reuses_prompt_and_answer_in_place(pair: Pair, reference: Reference, length: int) -> None:
    first = await pair.ask(pair.prompt(text_prompt(reference, length)), greedy(40))
    history = [*text_prompt(reference, length), *first.token_ids, 83, 85, 89]
    second = await pair.ask(pair.prompt(history), greedy(8))
    output = reference.model.generate(torch.tensor([history]), max_new_tokens=8, do_sample=False)
    assert second.token_ids == output[0, len(history) :].tolist()
    assert second.account and second.account.cache_read_tokens == (length + 39) // BLOCK * BLOCK


async def test_the_same_prompt_of_whole_blocks_computes_one_block(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 4 * BLOCK))
    cold = await pair.ask(prompt, greedy(6))
    warm = await pair.ask(prompt, greedy(6))
    assert warm.token_ids == cold.token_ids
    assert warm.account and warm.account.computed_tokens == BLOCK


async def test_many_at_once_in_a_small_pool(model: Path, redis_url: str, pair: Pair, reference: Reference) -> None:
    prompts = [pair.prompt(text_prompt(reference, 30 + 9 * index)[index:]) for index in range(6)]
    alone = [(await pair.ask(prompt, greedy(30))).token_ids for prompt in prompts]
    async with running_combined(model, redis_url, blocks=14, watermark=1, step_tokens=24) as tight:
        together = await asyncio.gather(*(tight.ask(prompt, greedy(30)) for prompt in prompts))
        assert [answer.token_ids for answer in together] == alone
        assert await tight.idle()


async def test_request_given_up_by_decode_is_refused_by_prefill(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 40))
    call, ticket = await reserve(pair, prompt)
    call.cancel()
    assert await pair.idle()
    with pytest.raises(FailedPreconditionError):
        await pair.run_prefill(prompt, greedy(4), ticket)


async def test_ticket_for_another_prompt_is_refused(pair: Pair, reference: Reference) -> None:
    call, ticket = await reserve(pair, pair.prompt(text_prompt(reference, 40)))
    with pytest.raises(FailedPreconditionError, match="another prompt"):
        await pair.run_prefill(pair.prompt(text_prompt(reference, 41)), greedy(4), ticket)
    call.cancel()


async def test_cancel_while_the_prompt_is_being_computed(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 40) * 12)
    for delay_s in (0.0, 0.005, 0.01, 0.02):
        call, ticket = await reserve(pair, prompt)
        computing = asyncio.ensure_future(pair.run_prefill(prompt, greedy(4), ticket))
        await asyncio.sleep(delay_s)
        call.cancel()
        await asyncio.gather(computing, return_exceptions=True)
        assert await pair.idle()
