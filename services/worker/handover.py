"""Hand-over by reference: prefill computes into the blocks that decode reserved, and nothing moves."""

from __future__ import annotations

from common.engine.sequence import Sequence
from common.kv.tally import Path
from services.decode.engine import DecodeEngine
from services.prefill.delivery import Deliveries, Delivery
from triptych.errors import FailedPreconditionError
from triptych.v1 import prefill_pb2, types_pb2


class Reference:
    """A `Delivery` within one process."""

    sent_bytes = 0
    path: Path = "reference"

    def __init__(self, decode: DecodeEngine, reservation_id: str) -> None:
        self._decode = decode
        self._reservation_id = reservation_id
        self._released = decode.intake.released(reservation_id)
        self._owned = False

    def ready(self, tokens: int) -> None:
        """The blocks are decode's already."""

    def layer_ready(self, layer: int, tokens: int) -> None:
        """See `ready`."""

    def renew(self) -> None:
        """See `Delivery`."""
        self._decode.intake.renew(self._reservation_id)

    async def finish(self, first: types_pb2.GeneratedToken) -> None:
        """See `Delivery`; FailedPreconditionError when decode gave the request up meanwhile."""
        self._decode.deliver(self._reservation_id, first)
        self._owned = True

    async def acknowledged(self) -> None:
        """See `Delivery`."""
        await self._released.wait()
        if not self._owned:
            raise FailedPreconditionError("decode gave the request up")

    def abort(self) -> None:
        """Nothing to undo: decode's own call frees the blocks."""


class ReferenceDeliveries:
    """By reference for tickets of this process, otherwise as `others`."""

    def __init__(self, decode: DecodeEngine, instance_id: str, others: Deliveries) -> None:
        self._decode = decode
        self._instance_id = instance_id
        self._others = others

    def open(self, begin: prefill_pb2.PrefillBegin) -> tuple[Sequence, Delivery, bool]:
        """See `Deliveries`."""
        ticket = begin.ticket
        if ticket.instance_id != self._instance_id:
            return self._others.open(begin)
        sequence = self._decode.intake.sequence(ticket.reservation_id)
        if sequence.token_ids(0, sequence.num_given) != list(begin.prompt.token_ids):
            raise FailedPreconditionError("the KV ticket was issued for another prompt")
        return sequence, Reference(self._decode, ticket.reservation_id), True
