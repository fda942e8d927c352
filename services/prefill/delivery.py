"""Where a prompt's KV goes: the one seam between computing a prompt and whoever decodes it."""

from __future__ import annotations

from typing import Protocol

from common.engine.sequence import Sequence
from common.kv.links import GrpcLinks, Links
from common.kv.sender import KvPush
from common.kv.tally import Path
from common.kv.transport import Transport
from common.kv.wire import CHUNK_BYTES
from common.rpc.channels import Channels
from common.worker.parts import Parts
from common.worker.prompts import to_sequence
from triptych.v1 import prefill_pb2, types_pb2


class Delivery(Protocol):
    """One prompt's way to decode."""

    @property
    def sent_bytes(self) -> int:
        """KV bytes moved so far."""

    @property
    def path(self) -> Path:
        """How they move."""

    def ready(self, tokens: int) -> None:
        """The prompt's first `tokens` tokens are final in every layer."""

    def layer_ready(self, layer: int, tokens: int) -> None:
        """The prompt's first `tokens` tokens are final in `layer`."""

    def renew(self) -> None:
        """Prefill lives: prolong decode's lease."""

    async def finish(self, first: types_pb2.GeneratedToken) -> None:
        """Hand over; returns when decode owns the request, raises when it refuses."""

    async def acknowledged(self) -> None:
        """Return when decode owns the request; raise as soon as it refuses."""

    def abort(self) -> None:
        """Give up; idempotent, harmless after `finish`."""


class Deliveries(Protocol):
    """Opens deliveries."""

    def open(self, begin: prefill_pb2.PrefillBegin) -> tuple[Sequence, Delivery, bool]:
        """The sequence to compute, its delivery, and whether the sequence already has its blocks.

        Raises InvalidArgumentError or FailedPreconditionError for a request or ticket that makes no sense.
        """


class PushDeliveries:
    """To another process: compute in blocks of our own and push them."""

    def __init__(
        self, parts: Parts, channels: Channels, links: Links | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._parts = parts
        layout, mode = parts.cache.layout, parts.settings.kv_transport
        self._links = links or GrpcLinks(channels)
        self._transport = Transport(layout, mode, chunk_bytes)

    def open(self, begin: prefill_pb2.PrefillBegin) -> tuple[Sequence, Delivery, bool]:
        """See `Deliveries`."""
        sequence = to_sequence(begin.request_id, begin.prompt, begin.sampling, self._parts)
        return sequence, KvPush(self._parts.cache, begin.ticket, sequence, self._links, self._transport), False
