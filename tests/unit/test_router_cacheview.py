"""What workers announce of their caches: told in steps, mirrored exactly, bounded on both sides."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from common.engine.layout import KvLayout
from common.identity.blocks import BlockChain, KeyedSpan, block_root, prompt_chain
from common.kv.wire import LAYOUT_VERSION, layout_to_proto
from common.rpc import cachefeed
from common.rpc.cachefeed import BACKLOG, Backlog, NoCache
from services.router.placing.cacheview import CacheView
from tests.contract.fleet import Index
from triptych.v1.types_pb2 import ImageSpan, Prompt
from triptych.v1.worker_pb2 import GetLoadResponse, WatchCacheResponse


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def names(*numbers: int) -> list[bytes]:
    return [name(number) for number in numbers]


STEPS = st.lists(st.one_of(st.integers(0, 30), st.just("take")), max_size=80)


@given(steps=STEPS)
def test_the_mirror_equals_the_index(steps: list[int | str]) -> None:
    index, view, present = Index(), CacheView(1000), set[int]()
    index.add(names(100, 101))
    backlog = Backlog(index)
    for step in steps:
        if isinstance(step, str):
            assert view.apply("w", backlog.take())
            continue
        present ^= {step}
        index.hashes.pop(name(step), None) if step not in present else index.hashes.update({name(step): None})
        backlog.note(name(step), step in present)
    while backlog.more:
        view.apply("w", backlog.take())
    assert {at for at in range(110) if view.prefix("w", [name(at)])} == present | {100, 101}


def test_a_slow_subscriber_gets_a_new_snapshot() -> None:
    index = Index()
    backlog, view = Backlog(index), CacheView(10**6)
    view.apply("w", backlog.take())
    for at in range(BACKLOG + 1):
        index.hashes[name(at)] = None
        backlog.note(name(at), True)
    response = backlog.take()
    assert (response.snapshot, len(response.added)) == (True, BACKLOG + 1)


def test_a_long_snapshot_comes_in_pieces() -> None:
    index, view = Index(), CacheView(10**6)
    index.add(name(at) for at in range(cachefeed.CHUNK_HASHES + 5))
    backlog = Backlog(index)
    pieces = [backlog.take(), backlog.take()]
    assert [piece.snapshot for piece in pieces] == [True, False]
    assert all(view.apply("w", piece) for piece in pieces)
    assert view.cached_blocks("w") == cachefeed.CHUNK_HASHES + 5


def test_a_worker_without_a_pool_has_nothing_to_tell() -> None:
    assert not Backlog(NoCache()).take().added


def test_a_gap_is_noticed() -> None:
    view = CacheView(10)
    assert not view.apply("w", WatchCacheResponse(sequence=1, added=names(1)))
    view.forget("w")
    assert view.apply("w", WatchCacheResponse(sequence=1, snapshot=True))
    assert not view.apply("w", WatchCacheResponse(sequence=3))


def test_a_prefix_ends_at_the_first_block_that_is_missing() -> None:
    view = CacheView(10)
    view.apply("w", WatchCacheResponse(sequence=1, snapshot=True, added=names(1, 2, 4)))
    assert [view.prefix("w", names(1, 2, 3, 4)), view.prefix("w", names(1, 2)), view.prefix("x", names(1))] == [2, 2, 0]


def test_the_view_is_bounded_over_all_workers() -> None:
    view = CacheView(5)
    view.apply("a", WatchCacheResponse(sequence=1, snapshot=True, added=names(1, 2, 3)))
    view.apply("b", WatchCacheResponse(sequence=1, snapshot=True, added=names(1, 2, 3)))
    assert (view.size, view.cached_blocks("b"), view.ignored) == (5, 2, 1)
    view.forget("a")
    view.apply("b", WatchCacheResponse(sequence=2, added=names(4), removed=names(1)))
    assert (view.size, view.prefix("b", names(2, 4))) == (2, 2)


def test_what_was_announced_is_forgotten_with_its_worker() -> None:
    view = CacheView(5)
    load = GetLoadResponse(pending_tokens=3)
    view.apply("a", WatchCacheResponse(sequence=1, snapshot=True, added=names(1), load=load, draining=True))
    assert (view.load("a").pending_tokens, view.refuses("a", "x")) == (3, True)
    view.forget("a")
    assert (view.size, view.load("a").pending_tokens, view.refuses("a", "x")) == (0, 0, False)


def test_whoever_answers_says_who_it_is() -> None:
    view = CacheView(5)
    view.apply("a", WatchCacheResponse(sequence=1, snapshot=True, instance_ids=["now"]))
    assert (view.refuses("a", "now"), view.refuses("a", "before"), view.refuses("b", "now")) == (False, True, False)


def test_router_and_workers_name_blocks_alike() -> None:
    layout = KvLayout("float32", 2, 1, 8, block_size=4)
    root = block_root("f" * 64, (LAYOUT_VERSION, *astuple(layout)), "5" * 64)
    theirs = BlockChain(root, 4, [KeyedSpan(2, 3, "a" * 64)])
    prompt = Prompt(token_ids=range(9), images=[ImageSpan(offset=2, length=3, embedding_key="a" * 64)])
    prompt.cache_scope = "5" * 64
    ours = prompt_chain(prompt, "f" * 64, layout_to_proto(layout))
    for chain in (ours, theirs):
        chain.extend(range(9))
    assert (len(ours.hashes), ours.hashes) == (2, theirs.hashes)
