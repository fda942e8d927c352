"""How a worker's KV leaves it: in the stream, or through staging memory for peers on the same host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.engine.layout import KvLayout
from common.kv.paths import InlineOutbox, Outbox, StagedOutbox
from common.kv.staging import KvTransport, Staging
from common.kv.wire import CHUNK_BYTES
from triptych.errors import FailedPreconditionError
from triptych.v1 import kv_pb2


@dataclass(slots=True)
class Transport:
    """One for all transfers of a process. `mode` auto: shared memory where the receiver can map it, else the stream."""

    layout: KvLayout
    mode: KvTransport = "auto"
    chunk_bytes: int = CHUNK_BYTES
    staging: Staging | None = None

    def offer(self) -> kv_pb2.StagingOffer | None:
        """Staging memory for a receiver to map, if it can; made when first offered."""
        if self.mode == "grpc":
            return None
        if self.staging is None:
            self.staging = Staging(max(self.chunk_bytes, self.layout.bytes_per_layer_block))
        return self.staging.offer()

    def outbox(self, opened: kv_pb2.PushOpened) -> Outbox:
        """The path that the receiver chose. FailedPreconditionError if it must be shared memory and is not."""
        if opened.staged and self.staging is not None:
            return StagedOutbox(self.staging)
        self._allow_inline()
        return InlineOutbox()

    def inline(self) -> Transport:
        """The same for receivers that map nothing, so nothing is offered; raises as `outbox`."""
        self._allow_inline()
        return replace(self, mode="grpc")

    def _allow_inline(self) -> None:
        if self.mode == "shm":
            raise FailedPreconditionError("kv_transport is shm, but the receiver cannot map this host's memory")
