"""The whole cluster against transformers: the same tokens in every topology and for every state of the caches."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

from tests.checkpoints import CheckpointCache
from tests.integration.chats import CHATS
from tests.pictures import noise
from tests.reference import Reference, ReferenceAnswer, same_tokens
from triptych import Client, Image
from triptych.answers import Answer
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions, Topology

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
TOKENS = 12
# Small steps: every prompt takes several, and their edges fall into pictures.
SMALL_STEPS: dict[Any, list[str]] = {
    "prefill": ["--step-tokens", "11", "--blocks", "256"],
    "decode": ["--blocks", "256"],
    "worker": ["--step-tokens", "13", "--blocks", "256"],
}
CASES: list[tuple[Topology, str, dict[str, Any]]] = [
    ("e-p-d", "qwen2_5_vl", {"tie": True}),
    ("e-pd", "qwen3_vl", {}),
    ("monolith", "gemma3", {}),
    ("monolith", "llava", {"old_names": True}),
]
Chat = tuple[list[dict[str, Any]], list[Pillow.Image]]


def png(picture: Pillow.Image) -> Image:
    """A picture as a user would send it."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return Image.from_bytes(buffer.getvalue())


def to_messages(chat: Chat) -> list[dict[str, Any]]:
    """The chat with its pictures put where the reference has markers."""
    pictures = iter(chat[1])

    def part(found: Mapping[str, str]) -> Any:
        return png(next(pictures)) if found["type"] == "image" else found["text"]

    def content(found: Any) -> Any:
        return found if isinstance(found, str) else [part(each) for each in found]

    return [{"role": message["role"], "content": content(message["content"])} for message in chat[0]]


def lengths_around_blocks(reference: Reference) -> list[Chat]:
    """Text chats whose prompts have k * 16 - 1, k * 16 and k * 16 + 1 tokens."""
    empty = len(reference.inputs([{"role": "user", "content": ""}], [])["input_ids"][0])
    chats: list[Chat] = []
    for length in (47, 48, 49, 79, 80, 81):
        words = "a"
        while len(tokens := prompt_of(reference, words)) < length:
            words += " a"
        assert len(tokens) == length > empty
        chats.append(([{"role": "user", "content": words}], []))
    return chats


def prompt_of(reference: Reference, words: str) -> list[int]:
    ids: list[int] = reference.inputs([{"role": "user", "content": words}], [])["input_ids"][0].tolist()
    return ids


@dataclass(frozen=True)
class Served:
    client: Client
    reference: Reference
    topology: Topology


def ask(client: Client, chat: Chat) -> Answer:
    stream = client.generate(to_messages(chat), max_tokens=TOKENS, temperature=0, ignore_eos=True, timeout_s=120)
    return stream.answer()


def check(expected: ReferenceAnswer, answer: Answer) -> None:
    assert answer.usage.prompt_tokens == len(expected.prompt_ids)
    assert same_tokens(expected, [token.token_id for token in answer.tokens])
    usage = answer.usage
    assert usage.cache_read_tokens + usage.cache_creation_tokens + usage.uncached_tokens == usage.prompt_tokens


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def served(request: pytest.FixtureRequest, checkpoints: CheckpointCache) -> Iterator[Served]:
    topology, family, options = request.param
    model: Path = checkpoints.get(family, **options)
    cluster_options = ClusterOptions(model, topology=topology, extra=SMALL_STEPS)
    with LocalCluster(cluster_options) as cluster, Client(cluster.grpc_address) as client:
        yield Served(client, Reference(model), topology)


def test_one_at_a_time_then_warm_then_all_at_once(served: Served) -> None:
    client, reference = served.client, served.reference
    chats: list[Chat] = [*CHATS.values(), *lengths_around_blocks(reference)]
    expected = [reference.generate(*chat, TOKENS, ignore_eos=True) for chat in chats]
    for chat, answer in zip(chats, expected, strict=True):
        check(answer, ask(client, chat))
    warm = [ask(client, chat) for chat in chats]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda chat: ask(client, chat), chats))
    for answer, *states in zip(expected, warm, together, strict=True):
        for got in states:
            check(answer, got)
    assert all(got.usage.cache_read_tokens for got in warm), "the second round should have come from the cache"
    assert not any(got.usage.embedding_misses for got in warm)
    travelled = sum(got.usage.kv_transfer_bytes for got in (*warm, *together))
    assert (travelled > 0) == (served.topology == "e-p-d")


def test_the_picture_decides_in_every_state_of_the_caches(served: Served) -> None:
    client, reference = served.client, served.reference
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which one is it?"}]}]
    chats: list[Chat] = [(message, [noise(90, 60, seed)]) for seed in (11, 12)]
    expected = [reference.generate(*chat, TOKENS, ignore_eos=True) for chat in chats]
    assert expected[0].token_ids != expected[1].token_ids
    for _ in range(2):
        for chat, answer in zip(chats, expected, strict=True):
            check(answer, ask(client, chat))


def test_bfloat16_end_to_end(checkpoints: CheckpointCache) -> None:
    model = checkpoints.get("qwen2_vl", shards=True)
    chat = CHATS["between"]
    expected = Reference(model, dtype=torch.bfloat16).generate(*chat, TOKENS, ignore_eos=True)
    options = ClusterOptions(model, topology="monolith", dtype="bfloat16", extra=SMALL_STEPS)
    with LocalCluster(options) as cluster, Client(cluster.grpc_address) as client:
        tokens = [token.token_id for token in ask(client, chat).tokens]
    # Another order of summation moves a bfloat16 logit by far more than a float32 one.
    pairs = zip(tokens, expected.token_ids, strict=True)
    parted = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    assert parted is None or expected.margins[parted] < 0.1
