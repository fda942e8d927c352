"""The block pool: its rules one by one, then any order of calls against a plain model of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.engine.blocks import BlockPool
from triptych.errors import ConfigError, InternalError


def test_allocates_distinct_blocks_until_none_is_left() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3) + pool.allocate(1)
    assert sorted(blocks) == [0, 1, 2, 3]
    assert (pool.num_free, pool.num_used) == (0, 4)
    assert not pool.can_allocate(1)
    assert pool.can_allocate(0)


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.acquire([block])
    pool.free([block])
    assert pool.references(block) == 1
    pool.free([block])
    assert pool.num_free == 2


def test_the_block_freed_last_is_used_first() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.free([blocks[1]])
    pool.free([blocks[2]])
    assert pool.allocate(2) == [blocks[2], blocks[1]]


def test_freeing_twice_is_a_fault() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(InternalError, match="0 owners"):
        pool.free(blocks)
    pool.validate()


def test_freeing_a_block_twice_in_one_call_changes_nothing() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    with pytest.raises(InternalError):
        pool.free([first, second, second])
    assert (pool.references(first), pool.references(second)) == (1, 1)


@pytest.mark.parametrize("block", [-1, 3])
def test_unknown_blocks_are_a_fault(block: int) -> None:
    pool = BlockPool(3)
    pool.allocate(3)
    with pytest.raises(InternalError, match="not in a pool"):
        pool.free([block])
    with pytest.raises(InternalError, match="not in a pool"):
        pool.acquire([block])


def test_a_free_block_cannot_be_shared_and_nothing_else_is() -> None:
    pool = BlockPool(3)
    (used,) = pool.allocate(1)
    with pytest.raises(InternalError, match="is free"):
        pool.acquire([used, used + 1])
    assert pool.references(used) == 1


def test_asking_for_more_than_is_free_is_a_fault() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(InternalError, match="2 blocks asked for, 1 free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_a_negative_count_cannot_be_allocated() -> None:
    assert not BlockPool(3).can_allocate(-1)


def test_an_empty_pool_is_a_bad_setting() -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        BlockPool(0)


class PoolMachine(RuleBasedStateMachine):
    """Random calls, right and wrong, beside a multiset of owners."""

    SIZE = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE)
        self.owners: Counter[int] = Counter()

    @rule(count=st.integers(0, SIZE + 1))
    def allocate(self, count: int) -> None:
        if not self.pool.can_allocate(count):
            with pytest.raises(InternalError):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not set(blocks) & set(+self.owners)
        self.owners.update(blocks)

    @precondition(lambda self: +self.owners)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(+self.owners)), max_size=5))
        self.pool.acquire(blocks)
        self.owners.update(blocks)

    @rule(blocks=st.lists(st.integers(-1, SIZE), max_size=6))
    def free(self, blocks: list[int]) -> None:
        if Counter(blocks) <= self.owners:
            self.pool.free(blocks)
            self.owners.subtract(blocks)
            return
        with pytest.raises(InternalError):
            self.pool.free(blocks)

    @precondition(lambda self: +self.owners)
    @rule(data=st.data())
    def free_everything_of_one(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(+self.owners)))
        self.pool.free([block] * self.owners.pop(block))

    @invariant()
    def agrees_with_the_owners(self) -> None:
        self.pool.validate()
        assert self.pool.num_used == len(+self.owners)
        assert [self.pool.references(block) for block in range(self.SIZE)] == [
            self.owners[block] for block in range(self.SIZE)
        ]


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
