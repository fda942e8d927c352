"""The prefix cache: what is found, what is evicted, and that no owned block ever is."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from common.engine.blocks import BlockPool
from common.engine.prefix_cache import PrefixCache
from tests.kv_ends import forget_cached
from triptych.errors import InternalError


def keys(name: str, count: int) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(count)]


def fill(cache: PrefixCache, name: str, count: int) -> list[int]:
    """Allocate and publish `count` blocks of the prefix called `name`."""
    blocks = cache.allocate(count)
    for block, key in zip(blocks, keys(name, count), strict=True):
        cache.publish(block, key)
    return blocks


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BlockPool(6))


def test_freed_blocks_are_found_again(cache: PrefixCache) -> None:
    blocks = fill(cache, "a", 3)
    cache.free(blocks)
    assert cache.match(keys("a", 5)) == blocks
    assert (cache.num_free, cache.num_cached, cache.num_in_use) == (6, 3, 0)


def test_a_run_ends_at_its_first_unknown_block(cache: PrefixCache) -> None:
    blocks = fill(cache, "a", 3)
    assert cache.match([b"a0", b"x", b"a2"]) == blocks[:1]
    assert cache.match([b"x", b"a0"]) == []


def test_least_recently_used_goes_first_and_of_a_prefix_its_end(cache: PrefixCache) -> None:
    for name in ("a", "b"):
        cache.free(fill(cache, name, 3))
    cache.share(used := cache.match(keys("a", 3)))
    cache.free(used)
    cache.allocate(2)
    assert len(cache.match(keys("b", 3))) == 1
    assert len(cache.match(keys("a", 3))) == 3
    assert cache.evictions == 2


def test_owned_blocks_are_never_evicted(cache: PrefixCache) -> None:
    fill(cache, "a", 4)
    cache.free(fill(cache, "b", 2))
    assert not cache.can_allocate(3)
    with pytest.raises(InternalError):
        cache.allocate(3)
    cache.allocate(2)
    assert len(cache.match(keys("a", 4))) == 4


def test_room_is_counted_without_the_blocks_about_to_be_shared(cache: PrefixCache) -> None:
    cache.free(fill(cache, "a", 4))
    found = cache.match(keys("a", 4))
    assert cache.can_share_and_allocate(found, 2)
    assert not cache.can_share_and_allocate(found, 3)


def test_of_two_equal_blocks_the_first_is_kept_and_the_other_is_plain(cache: PrefixCache) -> None:
    first, second = fill(cache, "a", 1), fill(cache, "a", 1)
    cache.free(second)
    assert cache.match([b"a0"]) == first
    assert cache.num_cached == 0


def test_a_mirror_that_left_hears_no_more(cache: PrefixCache) -> None:
    heard: list[tuple[bytes, bool]] = []

    def mirror(block_hash: bytes, added: bool) -> None:
        heard.append((block_hash, added))

    cache.on_change(mirror)
    cache.free(fill(cache, "a", 1))
    forget_cached(cache)
    cache.stop_change(mirror)
    cache.stop_change(mirror)
    fill(cache, "b", 1)
    assert heard == [(b"a0", True), (b"a0", False)]
    assert cache.snapshot() == (3, [b"b0"])


class PrefixCacheMachine(RuleBasedStateMachine):
    """Sequences come with a prefix from a few, get blocks, publish, and leave in any order."""

    held: Bundle[tuple[str, list[int]]] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BlockPool(8))
        self.owned: list[int] = []
        self.mirrored: set[bytes] = set()
        self.cache.on_change(self.mirror)

    def mirror(self, block_hash: bytes, added: bool) -> None:
        assert (block_hash in self.mirrored) is not added
        (self.mirrored.add if added else self.mirrored.remove)(block_hash)

    @rule(target=held, name=st.sampled_from("abc"), length=st.integers(1, 5))
    def admit(self, name: str, length: int) -> tuple[str, list[int]]:
        shared = self.cache.match(keys(name, length))
        if not self.cache.can_share_and_allocate(shared, length - len(shared)):
            return name, []
        self.cache.share(shared)
        blocks = shared + self.cache.allocate(length - len(shared))
        self.owned += blocks
        return name, blocks

    @rule(entry=held)
    def publish(self, entry: tuple[str, list[int]]) -> None:
        name, blocks = entry
        if all(block in self.owned for block in blocks):
            for block, key in zip(blocks, keys(name, len(blocks)), strict=True):
                self.cache.publish(block, key)

    @rule(entry=consumes(held))
    def leave(self, entry: tuple[str, list[int]]) -> None:
        self.cache.free(entry[1])
        for block in entry[1]:
            self.owned.remove(block)

    @rule()
    def forget_cached(self) -> None:
        forget_cached(self.cache)

    @invariant()
    def books_balance(self) -> None:
        self.cache.validate()
        assert self.cache.num_in_use == len(set(self.owned))
        assert self.cache.num_free + self.cache.num_in_use == 8
        assert set(self.cache.snapshot()[1]) == self.mirrored


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=60, stateful_step_count=30)
