"""Batches by visual tokens, without a tower."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from services.encoder.batching import Batcher, BatchQueue, Entry


async def queue_of(tokens: list[int], max_tokens: int) -> BatchQueue[int, int]:
    queue: BatchQueue[int, int] = BatchQueue(max_tokens)
    for item, count in enumerate(tokens):
        queue.add(Entry(item, count, asyncio.get_running_loop().create_future()))
    return queue


@pytest.mark.parametrize(
    ("tokens", "batches"),
    [
        ([], []),
        ([4, 4, 4], [[0, 1], [2]]),
        ([10], [[0]]),
        ([11, 1], [[0], [1]]),
        ([1, 11, 1], [[0], [1], [2]]),
        ([5, 5, 1], [[0, 1], [2]]),
    ],
)
async def test_batches_hold_what_fits_in_order_of_arrival(tokens: list[int], batches: list[list[int]]) -> None:
    queue = await queue_of(tokens, max_tokens=10)
    taken = []
    while batch := queue.take():
        taken.append([entry.item for entry in batch])
    assert taken == batches


class Gate:
    """A computation that waits for `open` and remembers its batches."""

    def __init__(self, poison: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.entered, self.open = threading.Event(), threading.Event()
        self._poison = poison

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.entered.set()
        assert self.open.wait(10)
        self.batches.append(list(items))
        if self._poison in items:
            raise ArithmeticError("poison")
        return [-item for item in items]


async def entered(gate: Gate) -> None:
    await asyncio.to_thread(gate.entered.wait, 10)


async def test_what_arrives_during_a_batch_is_the_next_batch() -> None:
    gate = Gate()
    batcher: Batcher[int, int] = Batcher(gate, max_tokens=100)
    calls = [asyncio.create_task(batcher.submit(1, 1))]
    await entered(gate)
    calls += [asyncio.create_task(batcher.submit(item, 1)) for item in (2, 3)]
    await asyncio.sleep(0)
    gate.open.set()
    assert [result for result, _ in await asyncio.gather(*calls)] == [-1, -2, -3]
    assert gate.batches == [[1], [2, 3]]


async def test_a_cancelled_item_is_not_computed() -> None:
    gate = Gate()
    batcher: Batcher[int, int] = Batcher(gate, max_tokens=100)
    calls = [asyncio.create_task(batcher.submit(item, 200)) for item in (1, 2, 3)]
    await entered(gate)
    calls[1].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert gate.batches == [[1], [3]]


async def test_cancelling_a_running_item_leaves_its_mates_alone() -> None:
    gate = Gate()
    batcher: Batcher[int, int] = Batcher(gate, max_tokens=100)
    calls = [asyncio.create_task(batcher.submit(item, 1)) for item in (1, 2)]
    await entered(gate)
    calls[0].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    assert (await calls[1])[0] == -2


async def test_a_poisonous_item_fails_alone() -> None:
    gate = Gate(poison=2)
    gate.open.set()
    batcher: Batcher[int, int] = Batcher(gate, max_tokens=100)
    calls = [asyncio.create_task(batcher.submit(item, 1)) for item in (1, 2, 3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[1], ArithmeticError)
    assert [results[0][0], results[2][0]] == [-1, -3]  # type: ignore[index]


async def test_the_batcher_goes_on_after_a_failure_and_after_a_pause() -> None:
    gate = Gate(poison=1)
    gate.open.set()
    batcher: Batcher[int, int] = Batcher(gate, max_tokens=100)
    with pytest.raises(ArithmeticError):
        await batcher.submit(1, 1)
    result, when = await batcher.submit(5, 1)
    assert result == -5
    assert when.end_ns > when.begin_ns


@pytest.mark.parametrize("count", [0, 2])
async def test_a_batch_with_the_wrong_number_of_results_fails_its_items(count: int) -> None:
    batcher: Batcher[int, int] = Batcher(lambda items: [0] * count, max_tokens=100)
    calls = [batcher.submit(item, 1) for item in range(3)]
    async with asyncio.timeout(10):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ValueError] * 3
