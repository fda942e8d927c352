"""Paged attention against dense attention written out, and KV blocks on their way between two caches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.attention import PagedAttention
from common.engine.batch import pack
from common.engine.kv_cache import KvCache
from common.engine.layout import KvLayout
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import Positions
from triptych.errors import ConfigError, FailedPreconditionError, InternalError

BLOCK, HEAD_DIM, LAYERS, NUM_BLOCKS = 4, 8, 2, 24
SCALING = 0.3
LAYOUT = KvLayout("float32", LAYERS, 2, HEAD_DIM, BLOCK)


class History:
    """One sequence with random query, key and value of every token, and blocks in a shuffled order."""

    def __init__(self, length: int, blocks: list[int], heads: tuple[int, int], seed: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        ids = np.arange(length, dtype=np.int64)[None]
        params = SamplingParams(temperature=0)
        self.sequence = Sequence(f"request-{seed}", [0] * length, Positions(ids, length), params, block_table=blocks)
        query_heads, kv_heads = heads
        self.query = torch.randn(query_heads, length, HEAD_DIM, generator=generator).to(dtype)
        self.key = torch.randn(kv_heads, length, HEAD_DIM, generator=generator).to(dtype)
        self.value = torch.randn(kv_heads, length, HEAD_DIM, generator=generator).to(dtype)

    def dense(self, start: int, end: int) -> Tensor:
        """Causal attention of tokens start..end-1 in float32, (end - start, heads, head_dim)."""
        group = self.query.shape[0] // self.key.shape[0]
        key, value = (each.float().repeat_interleave(group, 0)[:, :end] for each in (self.key, self.value))
        scores = self.query.float()[:, start:end] @ key.transpose(1, 2) * SCALING
        future = torch.arange(end) > torch.arange(start, end)[:, None]
        return (scores.masked_fill(future, -torch.inf).softmax(-1) @ value).transpose(0, 1)


def histories(lengths: list[int], heads: tuple[int, int] = (4, 2), dtype: torch.dtype = torch.float32) -> list[History]:
    order = np.random.default_rng(0).permutation(NUM_BLOCKS).tolist()
    made = []
    for seed, length in enumerate(lengths):
        count = -(-length // BLOCK)
        made.append(History(length, order[:count], heads, seed, dtype))
        order = order[count:]
    return made


def cache_for(history: History, fill: float = 0.0) -> KvCache:
    dtype = str(history.key.dtype).removeprefix("torch.")
    cache = KvCache(KvLayout(dtype, LAYERS, history.key.shape[0], HEAD_DIM, BLOCK), NUM_BLOCKS)
    everywhere = torch.arange(NUM_BLOCKS * BLOCK)
    rows = torch.full((len(everywhere), history.key.shape[0], HEAD_DIM), fill, dtype=history.key.dtype)
    for layer in range(LAYERS):
        cache.write(layer, everywhere, rows, rows)
    return cache


def attend(cache: KvCache, work: list[tuple[History, int, int]], layer: int = 1) -> Tensor:
    batch = pack([(history.sequence, start, end) for history, start, end in work], BLOCK, torch.device("cpu"))
    query, key, value = (
        torch.cat([getattr(history, name)[:, start:end] for history, start, end in work], dim=1)
        for name in ("query", "key", "value")
    )
    return PagedAttention(cache, batch).attend(layer, query, key, value, SCALING)


def run_steps(cache: KvCache, steps: list[list[tuple[History, int, int]]], tolerance: float = 1e-5) -> None:
    for work in steps:
        expected = torch.cat([history.dense(start, end) for history, start, end in work])
        torch.testing.assert_close(attend(cache, work).float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_chunks_and_decode_steps_equal_dense_attention(
    heads: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    first, second, third = histories([13, 9, 17], heads, dtype)
    steps = [
        [(first, 0, 5)],
        [(second, 0, 8), (first, 5, 6), (third, 0, 1)],
        [(third, 1, 16), (first, 6, 12), (second, 8, 9)],
        [(first, 12, 13), (third, 16, 17)],
    ]
    run_steps(cache_for(first), steps, tolerance)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_chunk_may_end_anywhere(cut: int) -> None:
    (history,) = histories([12])
    run_steps(cache_for(history), [[(history, 0, cut)], [(history, cut, 12)]])


def test_decode_steps_of_very_different_lengths_in_one_batch() -> None:
    made = histories([1, 2, 30, 7, 16, 8])
    cache = cache_for(made[0])
    run_steps(cache, [[(each, 0, each.sequence.num_tokens - 1) for each in made[1:]]])
    run_steps(cache, [[(each, each.sequence.num_tokens - 1, each.sequence.num_tokens) for each in made]])


def test_nothing_is_read_from_slots_that_are_not_the_sequences_own() -> None:
    made = histories([6, 3, 11])
    cache = cache_for(made[0], fill=float("nan"))
    run_steps(cache, [[(made[0], 0, 5), (made[1], 0, 2), (made[2], 0, 10)]])
    run_steps(cache, [[(made[0], 5, 6), (made[1], 2, 3), (made[2], 10, 11)]])


def test_layers_do_not_mix() -> None:
    first, second = histories([8, 8])
    second.sequence.block_table = first.sequence.block_table
    cache = cache_for(first)
    attend(cache, [(first, 0, 7)], layer=0)
    attend(cache, [(second, 0, 7)], layer=1)
    torch.testing.assert_close(attend(cache, [(first, 7, 8)], layer=0), first.dense(7, 8), atol=1e-5, rtol=1e-5)


def test_a_layer_is_reported_when_its_kv_is_in_the_cache() -> None:
    (history,) = histories([6])
    cache = cache_for(history)
    batch = pack([(history.sequence, 0, 6)], BLOCK, torch.device("cpu"))
    seen: list[tuple[int, bytes]] = []
    blocks = history.sequence.block_table
    attention = PagedAttention(cache, batch, lambda layer: seen.append((layer, bytes(cache.export(layer, blocks)))))
    for layer in range(LAYERS):
        attention.attend(layer, history.query, history.key, history.value, SCALING)
    assert seen == [(layer, bytes(cache.export(layer, blocks))) for layer in range(LAYERS)]
    assert any(seen[0][1])


def test_gather_gives_what_was_written() -> None:
    (history,) = histories([4])
    cache = cache_for(history)
    slots = torch.tensor([9, 2, 31, 30])
    cache.write(0, slots, history.key.transpose(0, 1), history.value.transpose(0, 1))
    key, value = cache.gather(0, slots.view(2, 2))
    assert key.shape == (2, 2, 2, HEAD_DIM)
    assert torch.equal(key.flatten(0, 1), history.key.transpose(0, 1))
    assert torch.equal(value.flatten(0, 1), history.value.transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_move_to_other_numbers_of_another_cache(dtype: torch.dtype) -> None:
    (history,) = histories([10], dtype=dtype)
    cache, peer = cache_for(history), cache_for(history, fill=float("nan"))
    for layer in range(LAYERS):
        attend(cache, [(history, 0, 9)], layer)
    sent = {layer: bytes(cache.export(layer, history.sequence.block_table)) for layer in range(LAYERS)}
    history.sequence.block_table = [20, 0, 7]
    for layer, buffer in sent.items():
        assert len(buffer) == 3 * cache.layout.bytes_per_layer_block
        peer.load(range(layer, layer + 1), [20, 0, 7], buffer)
        assert bytes(peer.export(layer, [20, 0, 7])) == buffer
    torch.testing.assert_close(attend(peer, [(history, 9, 10)]).float(), history.dense(9, 10), atol=2e-2, rtol=2e-2)


def test_an_exported_block_keeps_its_bytes_when_the_block_is_reused() -> None:
    (history,) = histories([4])
    cache = cache_for(history, fill=1.0)
    view = cache.export(0, [3])
    before = bytes(view)
    cache.load(range(1), [3], bytes(len(before)))
    assert bytes(view) == before
    assert not any(cache.export(0, [3]))


def test_no_blocks_are_no_bytes() -> None:
    cache = KvCache(LAYOUT, 2)
    assert len(cache.export(0, [])) == 0
    cache.load(range(1), [], b"")


def test_a_buffer_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match="3 bytes sent for 1 blocks"):
        KvCache(LAYOUT, 2).load(range(1), [1], b"abc")


@pytest.mark.parametrize("block", [-1, 2])
def test_blocks_outside_the_cache_are_a_fault(block: int) -> None:
    cache = KvCache(LAYOUT, 2)
    with pytest.raises(InternalError, match="not in a cache of 2"):
        cache.export(0, [block])
    with pytest.raises(InternalError, match="not in a cache of 2"):
        cache.load(range(1), [block], bytes(LAYOUT.bytes_per_layer_block))


def test_layout_sizes() -> None:
    assert LAYOUT.bytes_per_layer_block == BLOCK * 2 * 2 * HEAD_DIM * 4
    assert LAYOUT.bytes_per_block == LAYERS * LAYOUT.bytes_per_layer_block
    # Qwen2-VL-2B in bf16: 28 layers, two KV heads of 128.
    assert KvLayout("bfloat16", 28, 2, 128, 16).bytes_per_block == 16 * 28_672


@pytest.mark.parametrize(("dtype", "block_size"), [("int8", 4), ("float32", 0)])
def test_impossible_layouts_are_bad_settings(dtype: str, block_size: int) -> None:
    with pytest.raises(ConfigError):
        KvLayout(dtype, 1, 1, 1, block_size)


def test_a_cache_that_does_not_fit_is_a_bad_setting() -> None:
    with pytest.raises(ConfigError, match="no memory for"):
        KvCache(LAYOUT, 2**50)
