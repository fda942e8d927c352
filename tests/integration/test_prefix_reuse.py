"""Prefix reuse on prefill, on decode and between them: what is computed, what moves, and that answers stay equal."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch

from common.engine.layout import blocks_for
from common.models.tower import Tower
from common.store.client import connect, lease_key
from services.decode.parking import Parking
from tests.checkpoints import build_checkpoint
from tests.integration.test_hand_over import block_bytes, greedy, picture, reserve, text_prompt
from tests.reference import Reference
from tests.valkey import start_valkey
from tests.workers import Answer, Pair, Picture, running_pair
from triptych.v1 import types_pb2
from triptych.v1.worker_pb2 import GetLoadResponse as Load

BLOCK = 16


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with start_valkey() as url:
        yield url


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("qwen2_vl", tmp_path_factory.mktemp("model"), layers=4)


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture(scope="module")
def tower(model: Path) -> Tower:
    return Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
async def pair(model: Path, redis_url: str) -> AsyncIterator[Pair]:
    async with running_pair(model, redis_url, prefill={"step_tokens": 24, "pull": "always"}) as pair:
        yield pair
        assert await pair.idle(), "blocks or requests were left behind"


async def test_same_prompt_again_computes_one_block_and_moves_nothing_held(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 4 * BLOCK + 3))
    cold = await pair.ask(prompt, greedy(6))
    warm = await pair.ask(prompt, greedy(6))
    assert warm.token_ids == cold.token_ids
    assert cold.account and warm.account
    assert (cold.account.computed_tokens, cold.account.cache_creation_tokens) == (67, 64)
    assert (warm.account.computed_tokens, warm.account.cache_read_tokens) == (3, 64)
    assert warm.account.transfer_bytes == block_bytes(pair), "only the block that is not full"


async def test_prompt_of_whole_blocks_that_decode_holds_moves_nothing(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 4 * BLOCK))
    cold = await pair.ask(prompt, greedy(6))
    warm = await pair.ask(prompt, greedy(6))
    assert warm.token_ids == cold.token_ids
    assert warm.account and (warm.account.computed_tokens, warm.account.transfer_bytes) == (BLOCK, 0)


async def test_other_picture_of_the_same_size_shares_only_what_precedes_it(
    pair: Pair, reference: Reference, tower: Tower
) -> None:
    pictures = [picture(tower, key, 64, 64, seed)[1] for seed, key in enumerate("ab")]
    for each in pictures:
        await pair.put(each)
    marked = [*text_prompt(reference, 40), pair.family.image_token_id, *text_prompt(reference, 20)]
    prompts = [pair.prompt(marked, [each]) for each in pictures]
    alone = await fresh_answer(pair, prompts[1])
    first, second = [await pair.ask(prompt, greedy(8)) for prompt in prompts]
    assert prompts[0].token_ids == prompts[1].token_ids
    assert second.account and second.account.cache_read_tokens == 2 * BLOCK
    assert second.token_ids == alone
    assert second.token_ids != first.token_ids


async def fresh_answer(pair: Pair, prompt: types_pb2.Prompt) -> list[int]:
    """The answer in a cache scope of its own, which shares nothing."""
    other = types_pb2.Prompt()
    other.CopyFrom(prompt)
    other.cache_scope = secrets.token_hex(32)
    answer = await pair.ask(other, greedy(8))
    assert answer.account and answer.account.cache_read_tokens == 0
    return answer.token_ids


async def test_lease_of_a_picture_whose_kv_is_cached_ends_unread(
    pair: Pair, redis_url: str, reference: Reference, tower: Tower
) -> None:
    """The first token comes before the encoder has announced the picture."""
    shown = picture(tower, "c", 64, 64, 1)[1]
    await pair.put(shown)
    prompt = pair.prompt([*text_prompt(reference, 9), pair.family.image_token_id, *text_prompt(reference, 20)], [shown])
    await pair.ask(prompt, greedy(2))
    redis = connect(redis_url)
    await redis.zadd(lease_key(shown.key), {"test": 2**52, "other": 2**52})
    call, ticket = await reserve(pair, prompt)
    account = await pair.run_prefill(prompt, greedy(2), ticket, announce=False)
    left = await redis.zrange(lease_key(shown.key), 0, -1)
    await redis.delete(lease_key(shown.key))
    await redis.aclose()
    call.cancel()
    assert account.cache_read_tokens >= prompt.images[0].offset + prompt.images[0].length
    assert left == [b"other"]


async def test_leases_of_a_request_that_is_cancelled_end(
    pair: Pair, redis_url: str, reference: Reference, tower: Tower
) -> None:
    """D07 on prefill: announced or not, what was leased for the request may be evicted again."""
    shown = picture(tower, "d", 64, 64, 2)[1]
    prompt = pair.prompt([*text_prompt(reference, 9), pair.family.image_token_id, 7], [shown])
    redis = connect(redis_url)
    await redis.zadd(lease_key(shown.key), {"test": 2**52})
    call, ticket = await reserve(pair, prompt)
    prefill = asyncio.ensure_future(pair.run_prefill(prompt, greedy(2), ticket, announce=False))
    while not (await pair.load("prefill")).running_requests:  # noqa: ASYNC110 nothing tells us
        await asyncio.sleep(0.01)
    prefill.cancel()
    call.cancel()
    async with asyncio.timeout(10):
        while await redis.exists(lease_key(shown.key)):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.01)
    await redis.aclose()


async def test_scopes_share_nothing(pair: Pair, reference: Reference) -> None:
    """E05."""
    prompt = pair.prompt(text_prompt(reference, 50))
    await pair.ask(prompt, greedy(2))
    await fresh_answer(pair, prompt)
    again = await pair.ask(prompt, greedy(2))
    assert again.account and again.account.cache_read_tokens == 3 * BLOCK


async def test_conversation_computes_only_what_is_new(pair: Pair, reference: Reference, tower: Tower) -> None:
    """Six turns, two pictures: each turn reads all earlier full blocks, generated ones included; no held one moves.

    From decode to prefill come only the blocks with generated tokens, from prefill to decode only the new ones.
    """
    pictures: list[Picture] = []
    history: list[int] = []
    previous = asked = 0
    for turn in range(6):
        words = text_prompt(reference, 33 + turn)
        if turn in (0, 3):
            pictures.append(picture(tower, "ab"[turn % 2], 90, 60, turn)[1])
            await pair.put(pictures[-1])
            words.insert(7, pair.family.image_token_id)
        history += words
        prompt = pair.prompt(history, pictures)
        alone = await fresh_answer(pair, prompt)
        before = await pair.load("prefill")
        answer = await pair.ask(prompt, greedy(8))
        assert answer.token_ids == alone
        check_turn(pair, answer, len(prompt.token_ids), asked, previous)
        check_bytes(pair, answer, before, await pair.load("prefill"))
        # The last token was never fed back, so its KV exists nowhere.
        asked = len(prompt.token_ids)
        previous = asked + len(answer.tokens) - 1
        history += answer.token_ids


def check_turn(pair: Pair, answer: Answer, length: int, asked: int, previous: int) -> None:
    """`asked` tokens were the last turn's prompt, `previous` of prompt and answer have KV."""
    account = answer.account
    assert account
    held = previous // BLOCK
    assert account.cache_read_tokens == held * BLOCK
    assert account.pulled_tokens == (held - asked // BLOCK) * BLOCK
    assert account.computed_tokens == length - held * BLOCK
    assert account.transfer_bytes == (blocks_for(length, BLOCK) - held) * block_bytes(pair)


def check_bytes(pair: Pair, answer: Answer, before: Load, after: Load) -> None:
    """What each way carried in this turn, by the worker's own count."""
    assert answer.account
    assert after.kv_pushed_bytes - before.kv_pushed_bytes == answer.account.transfer_bytes
    assert after.kv_pulled_bytes - before.kv_pulled_bytes == answer.account.pulled_tokens // BLOCK * block_bytes(pair)


async def test_eviction_costs_time_and_not_correctness(model: Path, redis_url: str, reference: Reference) -> None:
    small = {"blocks": 12}
    async with running_pair(model, redis_url, prefill=small, decode=small) as pair:
        prompts = [pair.prompt(text_prompt(reference, 100 + index)[index:]) for index in range(5)]
        cold = [(await pair.ask(prompt, greedy(8))).token_ids for prompt in prompts]
        assert [(await pair.ask(prompt, greedy(8))).token_ids for prompt in prompts] == cold
        assert await pair.idle()


async def test_preempted_requests_give_the_same_tokens(
    pair: Pair, model: Path, redis_url: str, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three that fit until the first is about to end, whichever it is: somebody is parked and resumed on the way.

    The event loop, on which all others wait, copies nothing.
    """
    threads: set[str] = set()

    def spied(copy: Callable[..., None]) -> Callable[..., None]:
        def call(*given: object) -> None:
            threads.add(threading.current_thread().name)
            copy(*given)

        return call

    for name in ("_copy_out", "_copy_back"):
        monkeypatch.setattr(Parking, name, spied(getattr(Parking, name)))
    prompts = [pair.prompt(text_prompt(reference, 40 + index)[index:]) for index in range(3)]
    alone = [(await pair.ask(prompt, greedy(60))).token_ids for prompt in prompts]
    async with running_pair(model, redis_url, decode={"blocks": 12, "watermark": 1}) as tight:
        all_hold = asyncio.Barrier(3)
        together = await asyncio.gather(*(tight.ask(prompt, greedy(60), all_hold) for prompt in prompts))
        assert [answer.token_ids for answer in together] == alone
        assert (await tight.load("decode")).preemptions > 0
        assert threads == {"engine_0"}
        assert await tight.idle()
