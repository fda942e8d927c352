"""An answer that was cut off and goes on with other workers: the same tokens as if nothing had happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from common.models.tower import Tower
from tests.checkpoints import build_checkpoint
from tests.integration.test_hand_over import picture, text_prompt
from tests.reference import Reference
from tests.valkey import start_valkey
from tests.workers import Pair, running_combined, running_pair
from triptych.errors import InvalidArgumentError
from triptych.v1 import types_pb2

TOKENS = 24
SAMPLINGS = {
    "greedy": types_pb2.SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True),
    "seeded": types_pb2.SamplingParams(max_tokens=TOKENS, temperature=1, seed=5, ignore_eos=True),
    "penalties": types_pb2.SamplingParams(
        max_tokens=TOKENS,
        temperature=0.8,
        seed=2**63,
        ignore_eos=True,
        presence_penalty=0.7,
        frequency_penalty=0.9,
        repetition_penalty=1.3,
    ),
    # F23: it begins only once.
    "grammar": types_pb2.SamplingParams(
        max_tokens=TOKENS, temperature=0, ignore_eos=True, grammar=types_pb2.Grammar(regex=r'\{"word": "[a-z ]{200}"\}')
    ),
}


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
async def pairs(model: Path, redis_url: str) -> AsyncIterator[list[Pair]]:
    """The workers that begin an answer, and those that may go on with it: another pair, and one process for both."""
    async with (
        running_pair(model, redis_url) as first,
        running_pair(model, redis_url) as second,
        running_combined(model, redis_url) as third,
    ):
        yield [first, second, third]
        assert all([await pair.idle() for pair in (first, second, third)])


async def prompt_with_pictures(model: Path, reference: Reference, pair: Pair) -> types_pb2.Prompt:
    tower = Tower.load(model, dtype=torch.float32, device=torch.device("cpu"))
    pictures = [picture(tower, "ab"[index], 90, 60, index)[1] for index in range(2)]
    for each in pictures:
        await pair.put(each)
    marker = pair.family.image_token_id
    return pair.prompt([*text_prompt(reference, 13), marker, *text_prompt(reference, 9), marker, 7], pictures)


def cut_off(prompt: types_pb2.Prompt, tokens: list[int]) -> types_pb2.Prompt:
    """The prompt of a request whose client has `tokens` already."""
    rest = types_pb2.Prompt()
    rest.CopyFrom(prompt)
    rest.token_ids.extend(tokens)
    rest.generated = len(tokens)
    return rest


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_a_cut_answer_goes_on_elsewhere_token_for_token(
    name: str, pairs: list[Pair], model: Path, reference: Reference
) -> None:
    prompt = await prompt_with_pictures(model, reference, pairs[0])
    whole = (await pairs[0].ask(prompt, SAMPLINGS[name])).token_ids
    assert (name == "grammar") == str(reference.tokenizer.decode(whole)).startswith('{"word": "')
    for pair in pairs:
        for count in (1, 2, 17, TOKENS - 1):
            rest = await pair.ask(cut_off(prompt, whole[:count]), SAMPLINGS[name])
            assert whole[:count] + rest.token_ids == whole, (count, pairs.index(pair))
            assert rest.reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_complete_answer_only_gets_its_finish(pairs: list[Pair], reference: Reference) -> None:
    prompt = pairs[0].prompt(text_prompt(reference, 13))
    whole = await pairs[0].ask(prompt, SAMPLINGS["greedy"])
    for pair in pairs:
        rest = await pair.ask(cut_off(prompt, whole.token_ids), SAMPLINGS["greedy"])
        assert (rest.token_ids, rest.reason) == ([], whole.reason)
        assert await pair.idle()


@pytest.mark.parametrize(("given", "generated"), [(TOKENS + 1, TOKENS + 1), (0, 200)])
async def test_a_count_that_makes_no_sense_is_refused(
    given: int, generated: int, pairs: list[Pair], reference: Reference
) -> None:
    prompt = pairs[0].prompt([*text_prompt(reference, 13), *([7] * given)])
    prompt.generated = generated
    with pytest.raises(InvalidArgumentError) as caught:
        await pairs[0].ask(prompt, SAMPLINGS["greedy"])
    assert caught.value.param == "prompt.generated"
