"""What is sent next: every cell once, in whatever order layers become ready, and again only when asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.engine.layout import KvLayout
from common.kv.outgoing import Outgoing
from common.kv.wire import Slab

LAYOUT = KvLayout("float32", layers=3, kv_heads=1, head_dim=4, block_size=16)
Cell = tuple[int, int]


def cells(slabs: list[Slab]) -> list[Cell]:
    return [
        (layer, block) for slab in slabs for layer in slab.layers for block in range(slab.first_block, slab.end_block)
    ]


def take_all(outgoing: Outgoing) -> list[Slab]:
    return list(iter(outgoing.take, None))


@given(
    held=st.integers(0, 5),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.booleans()), max_size=30),
    chunk=st.integers(1, 4000),
)
def test_each_ready_cell_is_sent_once(held: int, steps: list[tuple[int, int, bool]], chunk: int) -> None:
    outgoing, sent, expected = Outgoing(LAYOUT, held, chunk), list[Slab](), set[Cell]()
    for layer, end, drain in steps:
        outgoing.ready([layer], end)
        expected |= {(layer, block) for block in range(held, end)}
        sent += take_all(outgoing) if drain else []
    sent += take_all(outgoing)
    assert len(cells(sent)) == len(expected)
    assert set(cells(sent)) == expected


@given(
    ends=st.lists(st.integers(2, 9), min_size=3, max_size=3),
    missing=st.sets(st.tuples(st.integers(0, 2), st.integers(2, 8))),
)
def test_what_is_missing_is_sent_again_as_far_as_it_is_ready(ends: list[int], missing: set[Cell]) -> None:
    outgoing = Outgoing(LAYOUT, 2)
    for layer, end in enumerate(ends):
        outgoing.ready([layer], end)
    take_all(outgoing)
    outgoing.resend(Slab(layer, 1, block, 1) for layer, block in sorted(missing))
    assert sorted(cells(take_all(outgoing))) == sorted(
        (layer, block) for layer, block in missing if block < ends[layer]
    )


def test_chunks_grow_so_that_the_receiver_begins_early() -> None:
    layout = KvLayout("float32", layers=1, kv_heads=8, head_dim=1024, block_size=16)
    outgoing = Outgoing(layout, 0)
    outgoing.ready([0], 31)
    assert [slab.num_blocks for slab in take_all(outgoing)] == [1, 2, 4, 8, 8, 8]


def test_layers_that_wait_together_share_a_chunk() -> None:
    outgoing = Outgoing(LAYOUT, 0)
    outgoing.ready(range(3), 4)
    assert take_all(outgoing) == [Slab(0, 3, 0, 4)]
    assert not outgoing
