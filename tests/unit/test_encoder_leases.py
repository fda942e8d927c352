"""Reservations that a replica keeps alive, with a store that only listens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from services.encoder.leases import Leases

KEY = "a" * 64


class Store:
    """Remembers what was renewed last, and everything released."""

    def __init__(self) -> None:
        self.renewed: dict[str, str] = {}
        self.released: list[tuple[str, str]] = []
        self.heard = asyncio.Event()

    async def renew(self, keys: Mapping[str, str], ttl_s: float) -> None:
        self.renewed = dict(keys)
        self.heard.set()

    async def release(self, key: str, owner: str) -> None:
        self.released.append((key, owner))


async def renewed(store: Store) -> dict[str, str]:
    """What the next renewal prolongs."""
    store.heard.clear()
    await asyncio.wait_for(store.heard.wait(), 30)
    return store.renewed


async def test_of_two_owners_of_one_key_the_one_that_ends_leaves_the_other_alone() -> None:
    store = Store()
    leases = Leases(store, ttl_s=0.03)  # type: ignore[arg-type]
    async with leases.held(KEY, "late"):
        async with leases.held(KEY, "heir"):
            assert await renewed(store) == {"late": KEY, "heir": KEY}
        assert await renewed(store) == {"late": KEY}
    assert store.released == [(KEY, "heir"), (KEY, "late")]
