"""Parked KV comes back as it was, into other blocks, and only what is missing there."""

from __future__ import annotations

import pytest

from services.decode.parking import Parking
from tests.kv_ends import LAYOUT, content, noisy_cache, prompt_of
from triptych.errors import InternalError

FROM = [3, 9, 1]
TOKENS = 2 * LAYOUT.block_size + 5


@pytest.mark.parametrize("found", [0, 1, 2])
def test_what_was_parked_comes_back_behind_what_is_cached(found: int) -> None:
    cache, sequence = noisy_cache(16, seed=1), prompt_of(FROM)
    parking, before = Parking(cache, 3 * LAYOUT.bytes_per_block), content(cache, FROM)
    sequence.num_computed = TOKENS
    parking.park(sequence)()
    kept = FROM[:found]
    for layer in range(LAYOUT.layers):
        cache.load(range(layer, layer + 1), FROM[found:], bytes((3 - found) * LAYOUT.bytes_per_layer_block))
    sequence.block_table, sequence.num_computed = [*kept, *[12, 4, 15][found:], 7], found * LAYOUT.block_size
    last = content(cache, [7])
    parking.unpark(sequence)()
    assert content(cache, sequence.block_table[:3]) == before
    assert (sequence.num_computed, content(cache, [7])) == (TOKENS, last)


def test_room_is_taken_when_a_sequence_is_parked_and_back_when_it_leaves() -> None:
    cache, first, second = noisy_cache(16, seed=1), prompt_of(FROM), prompt_of([5, 6])
    first.num_computed, second.num_computed = TOKENS, 1
    parking = Parking(cache, 3 * LAYOUT.bytes_per_block)
    parking.park(first)
    assert not parking.can_park(second)
    with pytest.raises(InternalError):
        parking.park(second)
    parking.forget(first)
    parking.forget(first)
    assert (parking.size_bytes, parking.can_park(second)) == (0, True)
