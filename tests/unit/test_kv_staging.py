"""Staging memory: mapped only by those who can, bounded, and gone with its owner."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

from common.kv.staging import Staging, StagingView
from triptych.v1 import kv_pb2

SLOT = 1 << 16


def test_a_receiver_reads_what_the_sender_put_into_a_slot() -> None:
    staging = Staging(SLOT, 3)
    view = StagingView.open(staging.offer())
    assert view is not None
    staging.view(2, 5)[:] = b"bytes"
    assert bytes(view.read(2, 5) or b"") == b"bytes"


@pytest.mark.parametrize(("slot", "size"), [(3, 1), (0, SLOT + 1), (2**32 - 1, 1)])
def test_slots_that_do_not_exist_cannot_be_read(slot: int, size: int) -> None:
    staging = Staging(SLOT, 3)
    view = StagingView.open(staging.offer())
    assert view and view.read(slot, size) is None


@pytest.mark.parametrize(
    "change",
    [
        {"host_id": "another"},
        {"host_id": ""},
        {"pid": 2**22 + 1},
        {"fd": 0},
        {"token": b"x" * 32},
        {"token": b""},
        {"num_slots": 4},
        {"slot_bytes": 1 << 40},
    ],
    ids=lambda change: "-".join(change),
)
def test_another_host_or_another_file_is_not_mapped(change: dict[str, object]) -> None:
    staging = Staging(SLOT, 3)
    offer = staging.offer()
    for name, value in change.items():
        setattr(offer, name, value)
    assert StagingView.open(offer) is None


def test_no_offer_is_no_memory() -> None:
    assert StagingView.open(kv_pb2.StagingOffer()) is None


def test_memory_has_no_name_and_goes_with_its_last_user() -> None:
    before = set(os.listdir("/dev/shm"))
    staging = Staging(SLOT, 3)
    offer = staging.offer()
    view = StagingView.open(offer)
    staging.view(0, 1)[:] = b"!"
    del staging
    gc.collect()
    assert bytes((view and view.read(0, 1)) or b"") == b"!", "a receiver keeps what it has mapped"
    assert StagingView.open(offer) is None
    assert set(os.listdir("/dev/shm")) == before


async def test_slots_are_given_in_the_order_of_asking() -> None:
    staging = Staging(SLOT, 1)
    slot, got = await staging.take(), list[int]()

    async def use(name: int) -> None:
        taken = await staging.take()
        got.append(name)
        staging.give(taken)

    users = [asyncio.create_task(use(name)) for name in range(4)]
    await asyncio.sleep(0)
    users[1].cancel()
    staging.give(slot)
    await asyncio.wait(users)
    assert (got, staging.num_free) == ([0, 2, 3], 1)
