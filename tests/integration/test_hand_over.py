"""Prefill to decode over real gRPC: the same tokens as transformers, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from common.engine.sequence import Sequence
from common.models.tower import Tower
from services.decode.job import Job as DecodeJob
from services.prefill.job import Job as PrefillJob
from tests.checkpoints import FAMILIES, build_checkpoint
from tests.reference import Reference, same_tokens
from tests.rendered import marked_ids
from tests.valkey import start_valkey
from tests.workers import Pair, Picture, running_combined, running_pair
from triptych.errors import ContextLengthError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import decode_pb2, kv_pb2, kv_pb2_grpc, types_pb2

BLOCK = 16


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with start_valkey() as url:
        yield url


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("qwen2_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture
async def pair(model: Path, redis_url: str) -> AsyncIterator[Pair]:
    async with running_pair(model, redis_url, prefill={"step_tokens": 2 * BLOCK}) as pair:
        yield pair
        assert await pair.idle(), "blocks or requests were left behind"


def greedy(max_tokens: int) -> types_pb2.SamplingParams:
    return types_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)


def picture(tower: Tower, key: str, width: int, height: int, seed: int) -> tuple[Image.Image, Picture]:
    noise = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    image = Image.fromarray(noise.numpy())
    return image, Picture(key * 64, width, height, tower.encode([tower.preprocess(image)])[0])


@pytest.mark.parametrize("family", FAMILIES)
async def test_images_of_every_family(family: str, tmp_path: Path, redis_url: str) -> None:
    model = build_checkpoint(family, tmp_path)
    reference, tower = Reference(model), Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))
    images, pictures = zip(*(picture(tower, *each) for each in (("a", 70, 45, 1), ("b", 33, 90, 2))), strict=True)
    parts = [{"type": "image"}, {"type": "text", "text": "and then " * 9}, {"type": "image"}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    expected = reference.generate(messages, images, 10, ignore_eos=True)
    async with running_pair(model, redis_url, prefill={"step_tokens": 13}) as pair:
        for each in pictures:
            await pair.put(each)
        prompt = pair.prompt(marked_ids(reference.tokenizer, pair.family, messages), pictures)
        answer = await pair.ask(prompt, greedy(10))
    assert list(prompt.token_ids) == expected.prompt_ids
    assert same_tokens(expected, answer.token_ids)


def text_prompt(reference: Reference, length: int) -> list[int]:
    """A prompt of exactly `length` harmless tokens."""
    ids: list[int] = reference.tokenizer("some words to read " * 40, add_special_tokens=False).input_ids
    return ids[:length]


@pytest.mark.parametrize("length", [k * BLOCK + d for k in (1, 2, 3) for d in (-1, 0, 1)] + [3 * 2 * BLOCK + 1])
async def test_prompt_lengths_around_block_edges(pair: Pair, reference: Reference, length: int) -> None:
    """F14, and D05: the last prompt is three chunks and one token."""
    ids = text_prompt(reference, length)
    answer = await pair.ask(pair.prompt(ids), greedy(5))
    output = reference.model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False)
    assert answer.token_ids == output[0, length:].tolist()
    assert answer.account and answer.account.transfer_bytes == -(-length // BLOCK) * block_bytes(pair)


def block_bytes(pair: Pair) -> int:
    config = pair.config.text_config
    head_dim = config.hidden_size // config.num_attention_heads
    per_token: int = config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 4
    return per_token * BLOCK


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_exactly_max_tokens(pair: Pair, reference: Reference, count: int) -> None:
    """F18."""
    answer = await pair.ask(pair.prompt(text_prompt(reference, 20)), greedy(count))
    assert (len(answer.tokens), answer.reason) == (count, types_pb2.FINISH_REASON_LENGTH)


async def test_eight_requests_at_once_equal_one_at_a_time(pair: Pair, reference: Reference) -> None:
    prompts = [pair.prompt(text_prompt(reference, 9 + 11 * index)[index:]) for index in range(8)]
    alone = [(await pair.ask(prompt, greedy(12))).token_ids for prompt in prompts]
    together = await asyncio.gather(*(pair.ask(prompt, greedy(12)) for prompt in prompts))
    assert [answer.token_ids for answer in together] == alone


async def test_seeded_sampling_does_not_depend_on_the_batch(pair: Pair, reference: Reference) -> None:
    sampling = types_pb2.SamplingParams(max_tokens=10, temperature=1, seed=7, ignore_eos=True)
    prompt = pair.prompt(text_prompt(reference, 30))
    alone = await pair.ask(prompt, sampling)
    others = [pair.ask(pair.prompt(text_prompt(reference, 40 + n)), greedy(10)) for n in range(4)]
    together = await asyncio.gather(pair.ask(prompt, sampling), *others)
    assert together[0].token_ids == alone.token_ids


async def test_every_token_has_its_logprob_also_the_first(pair: Pair, reference: Reference) -> None:
    """F21."""
    sampling = greedy(4)
    sampling.top_logprobs = 3
    answer = await pair.ask(pair.prompt(text_prompt(reference, 17)), sampling)
    assert [len(token.top) for token in answer.tokens] == [3] * 4
    assert all(token.top[0].token_id == token.token_id for token in answer.tokens)


async def test_end_token_chosen_by_prefill_ends_the_request(pair: Pair, reference: Reference) -> None:
    first = (await pair.ask(pair.prompt(text_prompt(reference, 20)), greedy(1))).token_ids[0]
    sampling = greedy(9)
    sampling.stop_token_ids.append(first)
    answer = await pair.ask(pair.prompt(text_prompt(reference, 20)), sampling)
    assert (answer.token_ids, answer.reason) == ([first], types_pb2.FINISH_REASON_STOP)


async def reserve(pair: Pair, prompt: types_pb2.Prompt) -> tuple[Any, kv_pb2.KvTicket]:
    call: Any = pair.decode.Decode(decode_pb2.DecodeRequest(prompt=prompt, sampling=greedy(4)))
    event = await call.read()
    return call, event.ticket


async def test_cancel_while_waiting_for_kv_frees_the_blocks_and_the_ticket(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 40))
    for _ in range(10):
        call, ticket = await reserve(pair, prompt)
        call.cancel()
        assert await pair.idle()
        with pytest.raises(FailedPreconditionError):
            await pair.run_prefill(prompt, greedy(4), ticket)


async def test_ticket_works_once(pair: Pair, reference: Reference) -> None:
    """F09."""
    prompt = pair.prompt(text_prompt(reference, 40))
    call, ticket = await reserve(pair, prompt)
    await pair.run_prefill(prompt, greedy(4), ticket)
    with pytest.raises(FailedPreconditionError):
        await pair.run_prefill(prompt, greedy(4), ticket)
    call.cancel()


async def test_ticket_of_an_earlier_process_is_refused(pair: Pair, reference: Reference) -> None:
    prompt = pair.prompt(text_prompt(reference, 40))
    call, ticket = await reserve(pair, prompt)
    ticket.instance_id = "another"
    with pytest.raises(FailedPreconditionError, match="another process"):
        await pair.run_prefill(prompt, greedy(4), ticket)
    call.cancel()


LEASE_S = 2.0
Running = Callable[[Path, str, float], AbstractAsyncContextManager[Pair]]


def running_pair_with_lease(model: Path, redis_url: str, lease_s: float) -> AbstractAsyncContextManager[Pair]:
    return running_pair(model, redis_url, decode={"reservation_ttl_s": lease_s})


def running_combined_with_lease(model: Path, redis_url: str, lease_s: float) -> AbstractAsyncContextManager[Pair]:
    return running_combined(model, redis_url, reservation_ttl_s=lease_s)


async def test_lease_expires_when_no_kv_arrives(model: Path, redis_url: str, reference: Reference) -> None:
    async with running_pair(model, redis_url, decode={"reservation_ttl_s": 0.2}) as pair:
        call, _ = await reserve(pair, pair.prompt(text_prompt(reference, 40)))
        with pytest.raises(UnavailableError, match="in time"), rpc_errors():
            await call.read()
        assert await pair.idle()


@pytest.mark.parametrize("running", [running_pair_with_lease, running_combined_with_lease])
async def test_lease_of_a_prompt_that_waits_for_its_picture_goes_on(
    model: Path, redis_url: str, reference: Reference, running: Running
) -> None:
    async with running(model, redis_url, LEASE_S) as pair:
        prompt = pair.prompt([*text_prompt(reference, 5), pair.family.image_token_id], [Picture("f" * 64, 64, 64, {})])
        call, ticket = await reserve(pair, prompt)
        computing = asyncio.ensure_future(pair.run_prefill(prompt, greedy(4), ticket, announce=False))
        ending = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([computing, ending], timeout=2 * LEASE_S)
        assert not done
        call.cancel()
        await asyncio.gather(computing, ending, return_exceptions=True)
        assert await pair.idle()


async def push(pair: Pair, ticket: kv_pb2.KvTicket, *messages: kv_pb2.PushRequest) -> None:
    header = kv_pb2.PushHeader(
        reservation_id=ticket.reservation_id, instance_id=ticket.instance_id, layout=ticket.layout
    )

    async def stream() -> AsyncIterator[kv_pb2.PushRequest]:
        yield kv_pb2.PushRequest(header=header)
        for message in messages:
            yield message

    with rpc_errors():
        async for _ in kv_pb2_grpc.KvServiceStub(pair.channels["decode"]).Push(stream()):
            pass


FIRST = kv_pb2.PushRequest(first_token=kv_pb2.FirstToken(token=types_pb2.GeneratedToken(token_id=1)))
DAMAGED = kv_pb2.PushRequest(chunk=kv_pb2.KvChunk(num_blocks=1, num_layers=1, data=b"\0" * 8, crc32=1))
OUTSIDE = kv_pb2.PushRequest(chunk=kv_pb2.KvChunk(first_block=900, num_blocks=1, num_layers=1))


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([FIRST], FailedPreconditionError),
        ([DAMAGED], InvalidArgumentError),
        ([OUTSIDE], InvalidArgumentError),
        ([], InvalidArgumentError),
    ],
    ids=["kv missing", "damaged", "outside", "no first token"],
)
async def test_bad_transfers_are_refused_and_the_ticket_stays_usable(
    pair: Pair, reference: Reference, messages: list[kv_pb2.PushRequest], error: type[Exception]
) -> None:
    prompt = pair.prompt(text_prompt(reference, 40))
    call, ticket = await reserve(pair, prompt)
    with pytest.raises(error):
        await push(pair, ticket, *messages)
    assert (await pair.run_prefill(prompt, greedy(4), ticket)).computed_tokens == 40
    call.cancel()


async def test_layouts_that_differ_are_refused(model: Path, redis_url: str, reference: Reference) -> None:
    """E14, E10 and F02: block sizes, like all else in the layout, are compared before anything moves."""
    async with running_pair(model, redis_url, prefill={"block_size": 8}) as pair:
        with pytest.raises(FailedPreconditionError, match="layouts differ"):
            await pair.ask(pair.prompt(text_prompt(reference, 40)), greedy(4))
        assert await pair.idle()


async def test_text_before_a_picture_is_computed_while_it_is_encoded(pair: Pair, reference: Reference) -> None:
    marker = pair.family.image_token_id
    prompt = pair.prompt([*text_prompt(reference, 70), marker, 7], [Picture("e" * 64, 64, 64, {})])
    call, ticket = await reserve(pair, prompt)
    computing = asyncio.ensure_future(pair.run_prefill(prompt, greedy(4), ticket, announce=False))
    for _ in range(2000):
        left = (await pair.load("prefill")).pending_tokens
        if left == len(prompt.token_ids) - 70:
            break
        await asyncio.sleep(0.01)
    assert left == len(prompt.token_ids) - 70, "what stands before the picture is computed, no more and no less"
    computing.cancel()
    call.cancel()
    await asyncio.gather(computing, return_exceptions=True)


async def test_vanished_embedding_fails_the_prefill_as_retryable(pair: Pair, reference: Reference) -> None:
    marker = pair.family.image_token_id
    prompt = pair.prompt([*text_prompt(reference, 5), marker, 7], [Picture("c" * 64, 64, 64, {})])
    with pytest.raises(UnavailableError, match="vanished"):
        await pair.ask(prompt, greedy(2))


async def test_requests_larger_than_the_pool_are_refused_with_numbers(pair: Pair, reference: Reference) -> None:
    with pytest.raises(ContextLengthError, match="2048"):
        await pair.ask(pair.prompt(text_prompt(reference, 40)), greedy(2009))


async def test_eight_that_need_twice_the_pool_all_finish(model: Path, redis_url: str, reference: Reference) -> None:
    """D14: nobody waits for ever, and the worker answers meanwhile."""
    async with running_pair(model, redis_url, decode={"blocks": 20, "watermark": 1}) as pair:
        asked = [pair.ask(pair.prompt(text_prompt(reference, 40 + n)), greedy(40)) for n in range(8)]
        answers = asyncio.gather(*asked)
        while not answers.done():
            assert (await pair.load("decode")).blocks_in_use <= 20
            await asyncio.sleep(0.05)
        assert [len(answer.tokens) for answer in await answers] == [40] * 8
        assert await pair.idle()


async def test_fifty_calls_with_four_pictures_leave_nothing_behind(
    pair: Pair, model: Path, reference: Reference
) -> None:
    """D19: prompts as long as the context allows; not one of their objects outlives them."""
    tower = Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))
    pictures = [picture(tower, "abcd"[index], 90, 60, index)[1] for index in range(4)]
    for each in pictures:
        await pair.put(each)
    marked = [*text_prompt(reference, 40), *([pair.family.image_token_id] * 4), 7]
    before = request_objects()
    for call in range(50):
        marked[0] = 20 + call
        await pair.ask(pair.prompt(marked, pictures), greedy(2))
    assert await pair.idle()
    assert request_objects() <= before


def request_objects() -> int:
    """How many there are in this process, whoever left them."""
    gc.collect()
    return sum(type(each) in (Sequence, PrefillJob, DecodeJob) for each in gc.get_objects())


async def test_two_that_do_not_fit_together_both_finish(model: Path, redis_url: str, reference: Reference) -> None:
    """D13: each needs more than half of either pool."""
    small = {"blocks": 10}
    async with running_pair(model, redis_url, prefill=small, decode=small) as pair:
        prompts = [pair.prompt(text_prompt(reference, 90)), pair.prompt(text_prompt(reference, 95))]
        answers = await asyncio.gather(*(pair.ask(prompt, greedy(8)) for prompt in prompts))
        assert [len(answer.tokens) for answer in answers] == [8, 8]
        assert await pair.idle()
