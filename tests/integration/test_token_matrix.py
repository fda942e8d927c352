"""Every state a request can be in, against transformers: the same tokens, and proof that it was in that state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from common.engine.layout import blocks_for
from common.kv.links import GrpcLinks
from common.models.tower import Tower
from common.worker.parts import load_parts
from common.worker.process import WorkerProcess
from common.worker.stage import Site, Stages
from services.decode import __main__ as decode_main
from services.decode.settings import DecodeSettings
from services.prefill import __main__ as prefill_main
from services.prefill.delivery import PushDeliveries
from services.prefill.settings import PrefillSettings
from services.prefill.stage import PrefillStage
from tests.checkpoints import CheckpointCache
from tests.integration.chats import IMAGE, text
from tests.integration.test_hand_over import greedy
from tests.kv_links import Fault, FaultyLinks
from tests.pictures import noise
from tests.reference import Reference, ReferenceAnswer, same_tokens
from tests.rendered import marked_ids
from tests.workers import Answer, Pair, Picture, running
from triptych.cli.plan import default_model
from triptych.v1 import types_pb2, worker_pb2

BLOCK = 16
TOKENS = 20
Settings = Mapping[str, object]
MODELS = ("demo", "twelve layers", "image attends both ways")
IMAGES = [noise(120, 90, 1), noise(60, 130, 2)]


@dataclass
class Case:
    """One checkpoint on both sides."""

    directory: Path
    reference: Reference
    tower: Tower
    redis_url: str

    def messages(self, words: str) -> list[dict[str, Any]]:
        parts = [text(words), IMAGE, text("and then compare it with the other one, line by line"), IMAGE]
        return [{"role": "user", "content": parts}]

    def expected(self, words: str, more: Sequence[int] = (), tokens: int = TOKENS) -> ReferenceAnswer:
        return self.reference.generate(self.messages(words), IMAGES, tokens, ignore_eos=True, more=more)

    async def prompt(self, pair: Pair, words: str, more: Sequence[int] = ()) -> types_pb2.Prompt:
        """The same prompt for our side; the embeddings are in the store."""
        pictures = [self._picture(index, image) for index, image in enumerate(IMAGES)]
        for each in pictures:
            await pair.put(each)
        ids = marked_ids(self.reference.tokenizer, pair.family, self.messages(words))
        return pair.prompt([*ids, *more], pictures)

    def _picture(self, index: int, image: Image.Image) -> Picture:
        tensors = self.tower.encode([self.tower.preprocess(image)])[0]
        return Picture("ab"[index] * 64, *image.size, tensors)


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, checkpoints: CheckpointCache, valkey_url: str) -> Case:
    directories = {
        "demo": default_model(),
        "twelve layers": checkpoints.get("qwen2_5_vl", layers=12),
        "image attends both ways": checkpoints.get("gemma3", layers=4),
    }
    directory = directories[request.param]
    tower = Tower.load(directory, dtype=torch.float32, device=torch.device("cpu"))
    return Case(directory, Reference(directory), tower, valkey_url)


@asynccontextmanager
async def workers(
    case: Case, prefills: Sequence[Settings], decodes: Sequence[Settings], *faults: Fault
) -> AsyncIterator[list[list[Pair]]]:
    """`pairs[p][d]` are prefill worker p and decode worker d. Transfers of the last prefill worker go wrong."""
    common = {"model": case.directory, "redis_url": case.redis_url, "blocks": 256, "drain_grace_s": 1.0}
    started = [prefill_main.build(PrefillSettings.model_validate({**common, **each})) for each in prefills]
    if faults:
        started.append(faulty(PrefillSettings.model_validate(common), faults))
    count = len(started)
    started += [decode_main.build(DecodeSettings.model_validate({**common, **each})) for each in decodes]
    async with running(started) as channels:
        pairs = [
            [Pair(case.directory, case.redis_url, prefill, decode) for decode in channels[count:]]
            for prefill in channels[:count]
        ]
        for pair in (each for row in pairs for each in row):
            pair.peers = [worker.address for worker in started[:1]]
        yield pairs
        assert all([await pair.idle() for row in pairs for pair in row]), "blocks or requests were left behind"


def faulty(settings: PrefillSettings, faults: Sequence[Fault]) -> WorkerProcess:
    """A prefill worker whose pushes go wrong; a chunk is one block of one layer."""

    def stages(site: Site) -> Stages:
        links = FaultyLinks(GrpcLinks(site.channels), *faults)
        deliveries = PushDeliveries(site.parts, site.channels, links, chunk_bytes=1)
        return {worker_pb2.WORKER_ROLE_PREFILL: PrefillStage(site, settings, deliveries, serves_kv=True)}

    return WorkerProcess(lambda: load_parts(settings, settings.step_tokens, step_sequences=0), stages)


def read(answer: Answer) -> tuple[int, int]:
    """Prompt tokens found cached on the prefill worker, and those it pulled."""
    assert answer.account
    return answer.account.cache_read_tokens - answer.account.pulled_tokens, answer.account.pulled_tokens


def whole_blocks(case: Case, prompt: types_pb2.Prompt) -> int:
    """Tokens of the prompt's longest prefix that may be reused."""
    tokens = (len(prompt.token_ids) - 1) // BLOCK * BLOCK
    for span in reversed(prompt.images):
        if not case.tower.family.image_attention_is_causal and span.offset < tokens < span.offset + span.length:
            tokens = span.offset // BLOCK * BLOCK
    return tokens


async def test_wherever_the_prefix_is_found(case: Case) -> None:
    never, always = {"pull": "never", "step_tokens": 24}, {"pull": "always", "step_tokens": 24}
    async with workers(case, [never, never, always, always], [{}, {}]) as pairs:
        prompt = await case.prompt(pairs[0][0], "Look at this")
        expected, reused = case.expected("Look at this"), whole_blocks(case, prompt)
        cold = await pairs[0][0].ask(prompt, greedy(TOKENS))
        on_prefill = await pairs[0][1].ask(prompt, greedy(TOKENS))
        on_decode = await pairs[1][0].ask(prompt, greedy(TOKENS))
        other_prefill = await pairs[2][1].ask(prompt, greedy(TOKENS))
        assert [read(each) for each in (cold, on_prefill, on_decode)] == [(0, 0), (reused, 0), (0, 0)]
        assert read(other_prefill) == (0, reused)
        assert cold.account and on_decode.account
        assert on_decode.account.transfer_bytes < cold.account.transfer_bytes
        for answer in (cold, on_prefill, on_decode, other_prefill):
            assert same_tokens(expected, answer.token_ids)

        more = [*cold.token_ids, *case.reference.tokenizer("and what is left?", add_special_tokens=False).input_ids]
        turn = await case.prompt(pairs[3][0], "Look at this", more)
        after = await pairs[3][0].ask(turn, greedy(TOKENS))
        assert read(after)[1] > reused, "blocks with generated tokens were pulled"
        assert same_tokens(case.expected("Look at this", more), after.token_ids)


async def test_preempted_and_resumed(case: Case) -> None:
    """D16: what was parked and copied back is what was there."""
    names = ["one", "number two is longer", "and this is the third of three"]
    expected = [case.expected(words, tokens=28) for words in names]
    begin, growth = zip(*(blocks_of(each) for each in expected), strict=True)
    # All three fit until the first one, whichever it is, is about to end.
    decode = {"blocks": sum(begin) + min(growth) - 1, "watermark": 0}
    async with workers(case, [{}], [decode]) as [[pair]]:
        prompts, all_hold = [await case.prompt(pair, words) for words in names], asyncio.Barrier(3)
        answers = await asyncio.gather(*(pair.ask(prompt, greedy(28), all_hold) for prompt in prompts))
        assert (await pair.load("decode")).preemptions > 0
        assert all(same_tokens(*each) for each in zip(expected, [each.token_ids for each in answers], strict=True))


def blocks_of(answer: ReferenceAnswer) -> tuple[int, int]:
    """Blocks of its prompt, and those it needs besides until its end."""
    length = len(answer.prompt_ids)
    begin = blocks_for(length, BLOCK)
    return begin, blocks_for(length + len(answer.token_ids) - 1, BLOCK) - begin


async def test_the_edge_of_a_chunk_at_every_offset_of_an_image(case: Case) -> None:
    """D01 and D02: steps of 32 tokens, and pictures that begin at every place before."""
    async with workers(case, [{"step_tokens": 32}], [{}]) as [[pair]]:
        edges: set[int] = set()
        for count in range(32):
            words = "a " * count
            prompt = await case.prompt(pair, words)
            edge = 32 - prompt.images[0].offset
            if 0 < edge < prompt.images[0].length:
                edges.add(edge)
                answer = await pair.ask(prompt, greedy(2))
                assert same_tokens(case.expected(words, tokens=2), answer.token_ids), edge
        assert edges == set(range(1, prompt.images[0].length))


async def test_three_answers_to_one_prompt(case: Case) -> None:
    """D17: they share the blocks of the prompt in a pool that does not hold all three to their end."""
    expected = case.expected("Three times", tokens=28)
    begin, growth = blocks_of(expected)
    # The full blocks of the prompt once, its end three times, and not quite what the first one needs to its end.
    decode = {"blocks": begin + 2 + growth - 1, "watermark": 0}
    async with workers(case, [{}], [decode]) as [[pair]]:
        prompt, all_hold = await case.prompt(pair, "Three times"), asyncio.Barrier(3)
        assert len(prompt.token_ids) % BLOCK, "or there is no end that fills no block"
        seeded = [types_pb2.SamplingParams(max_tokens=28, temperature=1, seed=n, ignore_eos=True) for n in (1, 2)]
        alone = [(await pair.ask(prompt, sampling)).token_ids for sampling in seeded]
        answers = await asyncio.gather(*(pair.ask(prompt, sampling, all_hold) for sampling in (greedy(28), *seeded)))
        assert (await pair.load("decode")).preemptions > 0
        assert same_tokens(expected, answers[0].token_ids)
        assert [answer.token_ids for answer in answers[1:]] == alone


async def test_after_a_transfer_that_was_retried(case: Case) -> None:
    fault = Fault("fail", nth=3)
    async with workers(case, [], [{}], fault) as [[pair]]:
        answer = await pair.ask(await case.prompt(pair, "Once more"), greedy(TOKENS))
        assert fault.hits == 1
        assert same_tokens(case.expected("Once more"), answer.token_ids)


async def test_resumed_with_other_workers(case: Case) -> None:
    async with workers(case, [{}, {}], [{}, {}]) as pairs:
        prompt, expected = await case.prompt(pairs[0][0], "Go on"), case.expected("Go on")
        begun = (await pairs[0][0].ask(prompt, greedy(7))).token_ids
        prompt.token_ids.extend(begun)
        prompt.generated = len(begun)
        rest = await pairs[1][1].ask(prompt, greedy(TOKENS))
        assert same_tokens(expected, begun + rest.token_ids)
