"""Cutting KV into messages, and leases on blocks."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.engine.layout import KvLayout
from common.kv.filling import Filling
from common.kv.frames import Frame
from common.kv.paths import Inbox
from common.kv.payload import SlabData, checksum, checksum_of
from common.kv.reservations import Reservation, Reservations
from common.kv.wire import Slab, cut
from tests.kv_ends import content, noisy_cache
from triptych.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from triptych.v1 import kv_pb2

LAYOUT = KvLayout("float32", layers=3, kv_heads=2, head_dim=4, block_size=16)


def cells(slabs: list[Slab]) -> list[tuple[int, int]]:
    return [
        (layer, block) for slab in slabs for layer in slab.layers for block in range(slab.first_block, slab.end_block)
    ]


@given(
    first=st.integers(0, 20),
    count=st.integers(0, 40),
    layers=st.integers(1, 9),
    message=st.integers(1, 40_000),
)
def test_every_cell_is_sent_once_and_no_message_is_too_large(first: int, count: int, layers: int, message: int) -> None:
    layout = KvLayout("bfloat16", layers=layers, kv_heads=2, head_dim=4, block_size=16)
    slabs = list(cut(Slab(0, layers, first, count), layout, message))
    expected = {(layer, block) for layer in range(layers) for block in range(first, first + count)}
    sent = cells(slabs)
    assert len(sent) == len(set(sent)) and set(sent) == expected
    limit = max(message, layout.bytes_per_layer_block)
    assert all(slab.num_layers * slab.num_blocks * layout.bytes_per_layer_block <= limit for slab in slabs)


def test_small_blocks_of_all_layers_share_a_message() -> None:
    assert list(cut(Slab(0, 3, 0, 2), LAYOUT, 1 << 20)) == [Slab(0, 3, 0, 2)]


def leased(blocks: list[int], ttl_s: float = 10.0, first: int = 0) -> tuple[Reservations, Reservation]:
    table = Reservations(num_layers=2, ttl_s=ttl_s)
    return table, table.open(blocks, first, now=100.0)


def test_reservation_is_complete_only_with_every_layer_of_every_block() -> None:
    _, lease = leased([7, 3])
    lease.mark(Slab(0, 2, 0, 1))
    lease.mark(Slab(0, 1, 1, 1))
    assert (lease.complete, lease.missing) == (False, 1)
    lease.mark(Slab(0, 1, 1, 1))
    assert not lease.complete, "a chunk that came twice must not stand for another"
    lease.mark(Slab(1, 1, 1, 1))
    assert lease.complete


def test_chunk_is_mapped_to_the_blocks_of_the_lease() -> None:
    _, lease = leased([7, 3, 9])
    assert lease.targets(Slab(1, 1, 1, 2)) == [3, 9]


def test_held_blocks_are_outside_the_lease() -> None:
    _, lease = leased([3, 9], first=4)
    assert lease.targets(Slab(0, 1, 5, 1)) == [9]
    with pytest.raises(InvalidArgumentError):
        lease.targets(Slab(0, 1, 3, 1))


def test_layers_of_the_same_blocks_join() -> None:
    assert Slab(0, 2, 4, 3).joined(Slab(2, 1, 4, 3)) == Slab(0, 3, 4, 3)
    assert Slab(0, 2, 4, 3).joined(Slab(2, 1, 4, 2)) is None
    assert Slab(0, 2, 4, 3).joined(Slab(3, 1, 4, 3)) is None


@pytest.mark.parametrize(
    "slab", [Slab(0, 1, 2, 1), Slab(1, 2, 0, 1), Slab(0, 1, 0, 3), Slab(0, 0, 0, 1), Slab(0, 1, 0, 0)]
)
def test_chunk_outside_the_lease_is_refused(slab: Slab) -> None:
    _, lease = leased([7, 3])
    with pytest.raises(InvalidArgumentError):
        lease.targets(slab)


def test_used_and_unknown_tickets_are_refused_alike() -> None:
    table, lease = leased([1], ttl_s=5.0)
    assert table.require(lease.id, 0, 104.9) is lease
    table.close(lease.id)
    table.close(lease.id)
    for ticket in (lease.id, "unknown"):
        with pytest.raises(FailedPreconditionError):
            table.require(ticket, 0, 100.0)


def test_an_expired_lease_is_a_reason_to_ask_for_another_also_after_it_was_cleared_away() -> None:
    table, lease = leased([1], ttl_s=5.0)
    for now in (105.0, 105.5, 109.9):
        with pytest.raises(UnavailableError, match="expired"):
            table.require(lease.id, 0, now)
        if table.expired(105.0):
            table.close(lease.id)
    with pytest.raises(FailedPreconditionError):
        table.require(lease.id, 0, 110.0)


def test_a_chunk_renews_the_lease() -> None:
    table, lease = leased([1], ttl_s=5.0)
    table.renew(lease, 104.0)
    assert table.expired(105.0) == []
    assert table.expired(109.0) == [lease]


def test_ids_are_never_issued_twice() -> None:
    table = Reservations(num_layers=1, ttl_s=1.0)
    assert len({table.open([0], 0, now=0.0).id for _ in range(1000)}) == 1000


@given(st.integers(0, 5), st.sets(st.tuples(st.integers(0, 1), st.integers(0, 5))))
def test_missing_cells_are_named_exactly(first: int, filled: set[tuple[int, int]]) -> None:
    _, lease = leased(list(range(6)), first=first)
    for layer, block in filled:
        lease.mark(Slab(layer, 1, first + block, 1))
    every = {(layer, first + block) for layer in range(2) for block in range(6)}
    missing = cells(lease.missing_slabs())
    assert set(missing) == every - {(layer, first + block) for layer, block in filled}
    assert len(missing) == lease.missing


def test_an_untouched_lease_lacks_one_slab() -> None:
    assert leased([7, 3, 9], first=2)[1].missing_slabs() == [Slab(0, 2, 2, 3)]


def test_the_newest_transfer_owns_the_reservation() -> None:
    table, lease = leased([1])
    old = table.claim(lease.id, "old", 100.0).stream
    new = table.claim(lease.id, "new", 100.0).stream
    assert table.require(lease.id, new, 100.0) is lease
    with pytest.raises(FailedPreconditionError, match="newer"):
        table.require(lease.id, old, 100.0)


def test_the_newest_stream_of_one_transfer_owns_the_reservation() -> None:
    """A slot that an older stream names may hold something else by now."""
    table, lease = leased([1])
    broken = table.claim(lease.id, "mine", 100.0).stream
    resumed = table.claim(lease.id, "mine", 100.0).stream
    assert table.require(lease.id, resumed, 100.0) is lease
    with pytest.raises(FailedPreconditionError, match="newer"):
        table.require(lease.id, broken, 100.0)


def test_a_delivered_transfer_is_known_for_one_lifetime_and_nobody_else_is() -> None:
    table, lease = leased([1], ttl_s=5.0)
    table.claim(lease.id, "mine", 100.0)
    table.deliver(lease, 101.0)
    assert table.was_delivered(lease.id, "mine", 105.9)
    assert not table.was_delivered(lease.id, "mine", 106.0)
    assert not table.was_delivered(lease.id, "another", 101.0)
    with pytest.raises(FailedPreconditionError):
        table.claim(lease.id, "mine", 101.0)


@given(st.binary(min_size=1, max_size=5000), st.integers(0), st.integers(0, 7))
def test_checksum_sees_every_flipped_bit(data: bytes, where: int, bit: int) -> None:
    damaged = bytearray(data)
    damaged[where % len(data)] ^= 1 << bit
    assert checksum(bytes(damaged)) != checksum(data)


@given(st.permutations(range(12)), st.integers(1, 12), st.integers(1, 12))
def test_blocks_are_read_alike_by_view_and_by_copy_and_written_back(order: list[int], count: int, piece: int) -> None:
    source, target, blocks = noisy_cache(12, seed=1), noisy_cache(12, seed=2), order[:count]
    slab = Slab(1, 2, 0, count)
    data, back = SlabData(slab, source, blocks), SlabData(slab, target, list(reversed(blocks)))
    copied = memoryview(bytearray(data.size))
    with patch("common.kv.payload.PIECE_BYTES", piece * source.layout.bytes_per_layer_block):
        assert data.copy_to(copied) == checksum(copied) == checksum_of(data.views()) == back.copy_from(copied)
    assert b"".join(data.views()) == copied
    assert content(target, list(reversed(blocks)))[1:3] == content(source, blocks)[1:3]


def test_what_is_written_again_is_not_lost_when_it_is_damaged() -> None:
    """A slot that a repeated chunk names may hold something else by now."""
    lease, mine = Reservation("", (0, 1), 0, 4, 0.0), noisy_cache(2, seed=5)
    filling, slab = Filling(mine, lease, Inbox(kv_pb2.StagingOffer(), "grpc")), Slab(0, 4, 0, 2)
    good = bytes(slab.size_bytes(mine.layout))
    for data in (good, bytes(len(good) - 1) + b"x"):
        chunk = kv_pb2.KvChunk(num_blocks=2, num_layers=4, xxh3=checksum(good))
        filling.write(Frame(kv_pb2.PushRequest(chunk=chunk), (data,)))
    assert lease.complete and b"".join(content(mine, [0, 1])) == good
