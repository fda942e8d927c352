"""The engine end to end against transformers: chunks, batches, transfers and take-overs give the same greedy tokens."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from common.engine.blocks import BlockPool
from common.engine.chunking import Waiting
from common.engine.kv_cache import KvCache
from common.engine.memory import kv_layout
from common.engine.runner import ModelRunner
from common.engine.sampler import sample
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.engine.stopping import finish_reason
from common.families.base import Family, ImageSpan
from common.families.registry import load_family
from common.models.language import LanguageModel
from common.models.tower import Tower
from tests.checkpoints import FAMILIES, build_checkpoint
from tests.reference import Reference, ReferenceAnswer, same_tokens
from triptych.errors import InternalError, UnavailableError

BLOCK = 8
TOKENS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
Features = Seq[Mapping[str, Tensor]]


def picture(seed: int, width: int = 112, height: int = 84) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def chat(text: str, images: int) -> list[dict[str, Any]]:
    parts: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@dataclass
class Setup:
    """One family: transformers' model, and both halves of ours."""

    reference: Reference
    family: Family
    tower: Tower
    model: LanguageModel

    def request(self, text: str, images: list[Image.Image], params: SamplingParams = GREEDY) -> Request:
        """The same request for both sides."""
        ids = self.reference.inputs(chat(text, len(images)), images)["input_ids"][0].tolist()
        spans = self._spans(ids, images)
        features = self.tower.encode([self.tower.preprocess(image) for image in images])
        sequence = Sequence(text, ids, self.family.positions(len(ids), spans), params, tuple(spans))
        sequence.whole_images = not self.family.image_attention_is_causal
        return Request(sequence, chat(text, len(images)), images, features)

    def answer(self, request: Request) -> ReferenceAnswer:
        """What transformers says to it."""
        return self.reference.generate(request.messages, request.images, TOKENS, ignore_eos=True)

    def _spans(self, ids: list[int], images: list[Image.Image]) -> list[ImageSpan]:
        spans: list[ImageSpan] = []
        for image in images:
            layout = self.family.layout(*image.size)
            offset = ids.index(self.family.image_token_id, spans[-1].end if spans else 0)
            spans.append(ImageSpan(offset, layout.tokens, layout.grid))
        return spans


@dataclass
class Request:
    """A sequence with what both sides need for it."""

    sequence: Sequence
    messages: list[dict[str, Any]]
    images: list[Image.Image]
    features: Features = ()


class Engine:
    """A pool in shuffled order, a cache and a runner: the least loop that generates."""

    def __init__(self, model: LanguageModel, num_blocks: int = 64) -> None:
        self.pool = BlockPool(num_blocks)
        blocks = self.pool.allocate(num_blocks)
        random.Random(0).shuffle(blocks)
        self.pool.free(blocks)
        self.runner = ModelRunner(model, KvCache(kv_layout(model, BLOCK), num_blocks))
        self.features: dict[Sequence, Features] = {}

    def add(self, request: Request) -> Sequence:
        self.features[request.sequence] = request.features
        return request.sequence

    def step(self, work: list[tuple[Sequence, int]]) -> Tensor:
        """Run one step, sample, append; finished sequences give their blocks back."""
        for sequence, count in work:
            missing = sequence.missing_blocks(sequence.num_computed + count, BLOCK)
            sequence.block_table += self.pool.allocate(missing)
        result = self.runner.execute(work, lambda sequence, index: self.features[sequence][index])
        for sequence, token in zip(result.sequences, sample(result.logits, result.sequences), strict=True):
            sequence.append(token.token_id)
            if finish_reason(sequence, (), 10_000):
                self.pool.free(sequence.block_table)
                del self.features[sequence]
        return result.logits

    def generate(self, request: Request, chunk: int = 10_000) -> list[int]:
        """Run one request alone to its end."""
        sequence = self.add(request)
        while sequence in self.features:
            self.step([(sequence, next_chunk(sequence, chunk))])
        return sequence.output_ids


def next_chunk(sequence: Sequence, most: int) -> int:
    """Tokens of the next step: up to `most`, but never less than an image that must not be cut."""
    waiting = Waiting("r", sequence.num_computed, sequence.num_tokens, sequence.num_tokens, sequence.uncut)
    return max(waiting.least, waiting.at_most(most))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@functools.cache
def load(family: str, root: Path) -> Setup:
    return setup_of(build_checkpoint(family, root / family))


def setup_of(directory: Path) -> Setup:
    model = LanguageModel.load(directory, dtype=torch.float32, device=torch.device("cpu"))
    tower = Tower.load(directory, torch.float32, torch.device("cpu"))
    return Setup(Reference(directory), load_family(directory), tower, model)


@pytest.fixture(params=FAMILIES)
def setup(request: pytest.FixtureRequest, root: Path) -> Setup:
    return load(request.param, root)


@pytest.fixture(params=[family for family in FAMILIES if family != "gemma3"])
def causal(request: pytest.FixtureRequest, root: Path) -> Setup:
    return load(request.param, root)


@pytest.fixture
def gemma(root: Path) -> Setup:
    return load("gemma3", root)


@pytest.fixture
def qwen(root: Path) -> Setup:
    return load("qwen3_vl", root)


@pytest.mark.parametrize("images", [0, 1, 2])
@pytest.mark.parametrize("chunk", [10_000, 5])
def test_answers_equal_the_reference(setup: Setup, images: int, chunk: int) -> None:
    request = setup.request("What is on these?", [picture(7), picture(8, 84, 140)][:images])
    engine = Engine(setup.model)
    assert same_tokens(setup.answer(request), engine.generate(request, chunk))
    assert engine.pool.num_used == 0
    engine.pool.validate()


def prefill_logits(setup: Setup, request: Request, cuts: list[int]) -> Tensor:
    """Logits after the prompt, computed in chunks that end at `cuts`."""
    engine, sequence = Engine(setup.model), replace(request.sequence, output_ids=[], block_table=[], num_computed=0)
    engine.features[sequence] = request.features
    for cut in [*cuts, sequence.num_prompt]:
        logits = engine.step([(sequence, cut - sequence.num_computed)])
    return logits


def test_a_chunk_may_end_at_every_offset_of_an_image(causal: Setup) -> None:
    request = causal.request("Where?", [picture(1)])
    (span,) = request.sequence.images
    expected = causal.reference.logits(request.messages, request.images)[-1:]
    for cut in range(span.offset - 1, span.end + 2):
        torch.testing.assert_close(prefill_logits(causal, request, [cut]), expected, atol=1e-4, rtol=1e-4)


def test_an_image_may_be_cut_into_single_tokens(causal: Setup) -> None:
    request = causal.request("Where?", [picture(1)])
    expected = causal.reference.logits(request.messages, request.images)[-1:]
    every_token = list(range(1, request.sequence.num_prompt))
    torch.testing.assert_close(prefill_logits(causal, request, every_token), expected, atol=1e-4, rtol=1e-4)


def test_an_image_that_attends_both_ways_is_never_cut(gemma: Setup) -> None:
    request = gemma.request("Where?", [picture(1)])
    (span,) = request.sequence.images
    expected = gemma.reference.logits(request.messages, request.images)[-1:]
    for cut in (span.offset, span.end):
        torch.testing.assert_close(prefill_logits(gemma, request, [cut]), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(InternalError, match="cut an image"):
        prefill_logits(gemma, request, [span.offset + 1])


def test_requests_join_and_leave_a_running_batch(setup: Setup) -> None:
    lengths, arrivals = [8, 3, 6, 1, 5], [0, 1, 1, 3, 4]
    requests = [
        setup.request(
            "word " * (4 * index + 1), [picture(index), picture(9)][: index % 3], replace(GREEDY, max_tokens=n)
        )
        for index, n in enumerate(lengths)
    ]
    engine = Engine(setup.model)
    step = 0
    while step <= max(arrivals) or engine.features:
        for request, arrival in zip(requests, arrivals, strict=True):
            if arrival == step:
                engine.add(request)
        # Chunks of 7 until a prompt is done, then one token a step: what decode and prefill do, mixed in one batch.
        engine.step([(sequence, next_chunk(sequence, 7)) for sequence in engine.features])
        step += 1
    for request, length in zip(requests, lengths, strict=True):
        answer = setup.reference.generate(request.messages, request.images, length, ignore_eos=True)
        assert same_tokens(answer, request.sequence.output_ids)
    assert engine.pool.num_used == 0


@pytest.mark.parametrize("chunk", [10_000, 5])
def test_a_window_in_every_layer(root: Path, chunk: int) -> None:
    setup = windowed(root)
    request = setup.request("What is on this? " * 3, [picture(7)])
    assert request.sequence.num_prompt > 2 * 20
    assert same_tokens(setup.answer(request), Engine(setup.model).generate(request, chunk))


@functools.cache
def windowed(root: Path) -> Setup:
    """LLaVA on a Mistral whose tokens read the last 20 only."""
    directory = build_checkpoint("llava", root / "windowed", text="mistral")
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["sliding_window"] = 20
    (directory / "config.json").write_text(json.dumps(config))
    return setup_of(directory)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1])
def test_prompts_around_the_end_of_a_block(qwen: Setup, length: int) -> None:
    ids = np.random.default_rng(length).integers(0, 200, length).tolist()
    request = Request(Sequence("r", ids, qwen.family.positions(length, []), GREEDY), [], [])
    ours = Engine(qwen.model).generate(request)
    theirs = list(ids)
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = qwen.reference.model(input_ids=torch.tensor([theirs]), use_cache=False).logits[0, -1]
            theirs.append(int(logits.argmax()))
    assert ours == theirs[length:]


def test_kv_blocks_moved_to_another_cache_continue_the_answer(setup: Setup) -> None:
    request = setup.request("And here?", [picture(3)])
    prefill, decode = Engine(setup.model), Engine(setup.model)
    decode.pool.allocate(5)
    sent = prefill.add(request)
    prefill.step([(sent, sent.num_prompt)])
    received = replace(sent, output_ids=list(sent.output_ids), block_table=decode.pool.allocate(len(sent.block_table)))
    for layer in range(setup.model.num_layers):
        data = prefill.runner.cache.export(layer, sent.block_table)
        decode.runner.cache.load(range(layer, layer + 1), received.block_table, data)
    # Decode has no image tensors: the KV is all it needs.
    assert same_tokens(setup.answer(request), decode.generate(replace_sequence(request, received)))


def replace_sequence(request: Request, sequence: Sequence) -> Request:
    """The same request as another worker sees it: without the features."""
    return Request(sequence, request.messages, request.images)


@pytest.mark.parametrize(
    "params", [GREEDY, replace(GREEDY, temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.1)]
)
def test_another_worker_continues_a_broken_stream(setup: Setup, params: SamplingParams) -> None:
    request = setup.request("Go on", [picture(4)], params)
    whole = Engine(setup.model).generate(request)
    for emitted in range(1, TOKENS):
        taken_over = replace(request.sequence, output_ids=whole[:emitted], block_table=[], num_computed=0)
        again = Request(taken_over, request.messages, request.images, request.features)
        assert Engine(setup.model).generate(again, chunk=9) == whole


def test_seeded_answers_do_not_depend_on_company(qwen: Setup) -> None:
    params = [replace(GREEDY, temperature=1.0, seed=seed, top_k=20) for seed in range(3)]
    alone = [Engine(qwen.model).generate(qwen.request("Same prompt", [], each)) for each in params]
    engine = Engine(qwen.model)
    together = [engine.add(qwen.request("Same prompt", [], each)) for each in params]
    while engine.features:
        engine.step([(sequence, sequence.num_uncomputed) for sequence in engine.features])
    assert [sequence.output_ids for sequence in together] == alone
    assert len({tuple(ids) for ids in alone}) == 3


def test_layers_are_reported_in_order(qwen: Setup) -> None:
    engine = Engine(qwen.model)
    sequence = engine.add(qwen.request("Hello", []))
    sequence.block_table = engine.pool.allocate(sequence.missing_blocks(sequence.num_prompt, BLOCK))
    seen: list[int] = []
    engine.runner.execute([(sequence, sequence.num_prompt)], no_images, seen.append)
    assert seen == list(range(qwen.model.num_layers))


def test_a_failed_step_leaves_the_sequences_as_they_were(qwen: Setup) -> None:
    request = qwen.request("Hello", [picture(5)])
    engine, sequence = Engine(qwen.model), request.sequence
    sequence.block_table = engine.pool.allocate(sequence.missing_blocks(sequence.num_prompt, BLOCK))
    with pytest.raises(UnavailableError):
        engine.runner.execute([(sequence, sequence.num_prompt)], no_images)
    assert sequence.num_computed == 0
    assert same_tokens(qwen.answer(request), engine.generate(request))


def no_images(sequence: Sequence, index: int) -> Mapping[str, Tensor]:
    raise UnavailableError("the embeddings are gone")
