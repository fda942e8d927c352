"""Leases on blocks that a peer is going to fill. Pure: time comes in, no tensor and no socket."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from common.kv.wire import Slab, joined
from triptych.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

INVALID = "the KV ticket is not valid (unknown, used or cancelled)"
EXPIRED = "the lease on the KV blocks has expired"

Key = TypeVar("Key", str, tuple[str, str])


@dataclass(slots=True)
class Reservation:
    """`blocks` of the pool, to be filled in `num_layers` layers before `expires_at` (monotonic seconds).

    They stand for blocks `first_block`, `first_block + 1`, ... of a prompt, whose earlier ones are there already.
    `transfer_id` names the one transfer that may fill them now, and `stream` counts the streams of all transfers: only
    the newest one's chunks are heard.
    """

    id: str
    blocks: tuple[int, ...]
    first_block: int
    num_layers: int
    expires_at: float
    transfer_id: str = ""
    stream: int = 0
    _filled: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._filled = np.zeros((self.num_layers, len(self.blocks)), dtype=np.bool_)

    @property
    def complete(self) -> bool:
        """True once every block has arrived in every layer."""
        return bool(self._filled.all())

    @property
    def missing(self) -> int:
        """(layer, block) cells that have not arrived."""
        return int(self._filled.size - self._filled.sum())

    def missing_slabs(self) -> list[Slab]:
        """The missing cells, as few slabs where they are regular."""
        return joined(slab for layer in range(self.num_layers) for slab in self._missing_in(layer))

    def targets(self, slab: Slab) -> list[int]:
        """Pool blocks that `slab` names. InvalidArgumentError when it reaches outside the reservation."""
        if not slab.num_blocks or not slab.num_layers:
            raise InvalidArgumentError("a KV chunk covers no block", param="chunk")
        last = self.first_block + len(self.blocks)
        outside = slab.first_block < self.first_block or slab.end_block > last
        if outside or slab.first_layer + slab.num_layers > self.num_layers:
            size = f"{self.num_layers} layers of blocks {self.first_block} to {last - 1}"
            raise InvalidArgumentError(f"{slab} is outside the reservation's {size}", param="chunk")
        return list(self.blocks[slab.first_block - self.first_block : slab.end_block - self.first_block])

    def mark(self, slab: Slab, filled: bool = True) -> None:
        """Note that `slab` has been written, or spoilt. Doing it again is harmless."""
        self._cells(slab)[:] = filled

    def has(self, slab: Slab) -> bool:
        """True if all of `slab` has been written."""
        return bool(self._cells(slab).all())

    def _cells(self, slab: Slab) -> NDArray[np.bool_]:
        layers = slice(slab.first_layer, slab.first_layer + slab.num_layers)
        return self._filled[layers, slab.first_block - self.first_block : slab.end_block - self.first_block]

    def _missing_in(self, layer: int) -> Iterator[Slab]:
        edges = np.flatnonzero(np.diff(~self._filled[layer], prepend=False, append=False)).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            yield Slab(layer, 1, self.first_block + begin, end - begin)


class Reservations:
    """The open reservations of one worker. An id is random and never issued twice, so an old ticket finds nothing.

    A delivered transfer is remembered for one lifetime, for senders whose acknowledgement was lost.
    """

    def __init__(self, num_layers: int, ttl_s: float) -> None:
        self._num_layers = num_layers
        self.ttl_s = ttl_s
        self._open: dict[str, Reservation] = {}
        # In order of time, oldest first: expiry only ever looks at the front.
        self._delivered: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._lapsed: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, blocks: list[int], first_block: int, now: float) -> Reservation:
        """Lease `blocks` until `now` plus the lifetime; whatever arrives from its sender renews it."""
        expires_at = now + self.ttl_s
        reservation = Reservation(secrets.token_hex(16), tuple(blocks), first_block, self._num_layers, expires_at)
        self._open[reservation.id] = reservation
        return reservation

    def claim(self, reservation_id: str, transfer_id: str, now: float) -> Reservation:
        """Let a new stream of a transfer fill a reservation; earlier ones no longer may. Raises as `require`."""
        reservation = self._find(reservation_id, now)
        reservation.transfer_id = transfer_id
        reservation.stream += 1
        return reservation

    def require(self, reservation_id: str, stream: int, now: float) -> Reservation:
        """The open reservation of that id, if that stream may fill it.

        FailedPreconditionError: unknown, used and cancelled are one. UnavailableError: expired; a new one may be had.
        """
        reservation = self._find(reservation_id, now)
        if reservation.stream != stream:
            raise FailedPreconditionError("a newer transfer fills this reservation")
        return reservation

    def renew(self, reservation: Reservation, now: float) -> None:
        """Start the lifetime again."""
        reservation.expires_at = now + self.ttl_s

    def expired(self, now: float) -> list[Reservation]:
        """Open reservations whose lifetime is over; the owner closes them. They are remembered for another lifetime."""
        lapsed = [reservation for reservation in self._open.values() if reservation.expires_at <= now]
        _remember(self._lapsed, [reservation.id for reservation in lapsed], now, self.ttl_s)
        return lapsed

    def close(self, reservation_id: str) -> None:
        """End a lease, for whatever reason; idempotent."""
        self._open.pop(reservation_id, None)

    def deliver(self, reservation: Reservation, now: float) -> None:
        """End a lease because its blocks are filled, and remember the transfer."""
        self.close(reservation.id)
        _remember(self._delivered, [(reservation.id, reservation.transfer_id)], now, self.ttl_s)

    def was_delivered(self, reservation_id: str, transfer_id: str, now: float) -> bool:
        """True if this very transfer has filled the reservation, not long ago."""
        return self._delivered.get((reservation_id, transfer_id), now) > now

    def _find(self, reservation_id: str, now: float) -> Reservation:
        reservation = self._open.get(reservation_id)
        if reservation is None and self._lapsed.get(reservation_id, now) <= now:
            raise FailedPreconditionError(INVALID)
        if reservation is None or reservation.expires_at <= now:
            raise UnavailableError(EXPIRED)
        return reservation


def _remember(table: OrderedDict[Key, float], keys: list[Key], now: float, ttl_s: float) -> None:
    """Note `keys` for `ttl_s` seconds, and forget those whose time is over."""
    while table and next(iter(table.values())) <= now:
        table.popitem(last=False)
    table.update(dict.fromkeys(keys, now + ttl_s))
