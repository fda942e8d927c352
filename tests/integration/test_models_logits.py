"""Tower and language model, loaded apart, compute what transformers computes with the whole model."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from common.models.language import VisualInputs
from tests.checkpoints import FAMILIES, CheckpointCache
from tests.integration.chats import CHATS, PICTURES, TOLERANCE
from tests.integration.dense_attention import DenseAttention
from tests.integration.split_model import SplitModel
from tests.reference import Reference, same_tokens
from triptych.errors import FailedPreconditionError


@cache
def both(checkpoints: CheckpointCache, family: str) -> tuple[SplitModel, Reference]:
    model_dir = checkpoints.get(family)
    return SplitModel(model_dir), Reference(model_dir)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_the_whole_model(checkpoints: CheckpointCache, family: str, chat: str) -> None:
    ours, reference = both(checkpoints, family)
    prompt = ours.prompt(*CHATS[chat])
    assert prompt.token_ids == reference.inputs(*CHATS[chat])["input_ids"][0].tolist()
    difference = (ours.logits([prompt])[0] - reference.logits(*CHATS[chat])).abs().max()
    assert difference <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_prompts_do_not_see_each_other(checkpoints: CheckpointCache, family: str) -> None:
    ours, reference = both(checkpoints, family)
    packed = ours.logits([ours.prompt(*chat) for chat in CHATS.values()])
    for chat, logits in zip(CHATS.values(), packed, strict=True):
        assert (logits - reference.logits(*chat)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_every_picture_changes_the_answer(checkpoints: CheckpointCache, family: str) -> None:
    ours, _ = both(checkpoints, family)
    messages, images = CHATS["between"]
    answer = ours.logits([ours.prompt(messages, images)])[0][-1]
    for changed in ([PICTURES[3], images[1]], [images[0], PICTURES[3]], images[::-1]):
        assert (ours.logits([ours.prompt(messages, changed)])[0][-1] - answer).abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_after_the_prompt_give_the_reference_tokens(checkpoints: CheckpointCache, family: str) -> None:
    """Generate without a cache: every new token is appended with the position that `Positions.next` announces."""
    ours, reference = both(checkpoints, family)
    messages, images = CHATS["turns"]
    expected = reference.generate(messages, images, 8)
    prompt = ours.prompt(messages, images)
    embeds, positions, generated = prompt.embeds, prompt.positions, []
    next_position = int(positions.max()) + 1
    for step in range(8):
        hidden = ours.language.forward(embeds, positions, prompt.visual, DenseAttention([len(embeds)], [prompt.whole]))
        generated.append(int(ours.language.logits(hidden[-1:]).argmax()))
        embeds = torch.cat([embeds, ours.language.embed(torch.tensor(generated[-1:]))])
        positions = torch.cat([positions, torch.full((len(positions), 1), next_position + step)], dim=1)
    assert same_tokens(expected, generated)


def test_layers_are_asked_in_order(checkpoints: CheckpointCache) -> None:
    ours, _ = both(checkpoints, "qwen3_vl")
    attention = DenseAttention([5])
    embeds = ours.language.embed(torch.arange(10, 15))
    ours.language.forward(embeds, torch.arange(5).expand(3, -1), None, attention)
    assert attention.layers == list(range(ours.language.num_layers))


def test_deepstack_maps_of_another_model_are_refused(checkpoints: CheckpointCache) -> None:
    ours, _ = both(checkpoints, "qwen2_vl")
    visual = VisualInputs(torch.tensor([1]), (torch.zeros(1, ours.language.hidden_size),))
    with pytest.raises(FailedPreconditionError, match="1 DeepStack maps, this model takes 0"):
        ours.language.forward(torch.zeros(3, 64), torch.zeros(3, 3, dtype=torch.int64), visual, DenseAttention([3]))


@pytest.mark.parametrize("text_model", ["mistral", "qwen2"])
def test_other_text_models_of_llava(checkpoints: CheckpointCache, text_model: str) -> None:
    model_dir = checkpoints.get("llava", text=text_model)
    ours, reference = SplitModel(model_dir), Reference(model_dir)
    for chat in CHATS.values():
        assert (ours.logits([ours.prompt(*chat)])[0] - reference.logits(*chat)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_close_to_transformers_in_bfloat16(checkpoints: CheckpointCache, family: str) -> None:
    model_dir = checkpoints.get(family)
    ours, reference = SplitModel(model_dir, torch.bfloat16), Reference(model_dir, torch.bfloat16)
    difference = ours.logits([ours.prompt(*CHATS["first"])])[0] - reference.logits(*CHATS["first"])
    assert difference.abs().mean() < 0.1
