"""Sequences and jobs for tests of scheduling: no tensors, no sockets."""

from __future__ import annotations

import numpy as np

from common.engine.blocks import BlockPool
from common.engine.prefix_cache import PrefixCache
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import ImageSpan, Positions
from common.kv.tally import Path
from common.worker.blocks import SequenceBlocks
from services.decode.job import Job as DecodeJob
from services.decode.step import Copy
from services.prefill.job import Job as PrefillJob
from triptych.v1.types_pb2 import GeneratedToken


def sequence(length: int, max_tokens: int = 1, images: tuple[ImageSpan, ...] = ()) -> Sequence:
    """A prompt whose tokens are all the same."""
    positions = Positions(np.arange(length, dtype=np.int64)[None], length)
    return Sequence("r", [1] * length, positions, SamplingParams(max_tokens=max_tokens, temperature=0), images)


def eight_blocks() -> SequenceBlocks:
    """A pool of eight blocks of four tokens."""
    return SequenceBlocks(PrefixCache(BlockPool(8)), block_size=4)


class ParkingTwin:
    """Remembers how far a sequence was computed, as the real one does, without its KV; and the copies made."""

    def __init__(self, capacity: int = 9) -> None:
        self.capacity = capacity
        self.computed: dict[Sequence, int] = {}
        self.copied: list[tuple[str, list[int]]] = []

    def can_park(self, sequence: Sequence) -> bool:
        return len(self.computed) < self.capacity

    def park(self, sequence: Sequence) -> Copy:
        self.computed[sequence] = sequence.num_computed
        blocks = list(sequence.block_table)
        return lambda: self.copied.append(("out", blocks))

    def unpark(self, sequence: Sequence) -> Copy:
        sequence.num_computed = self.computed.pop(sequence)
        blocks = list(sequence.block_table)
        return lambda: self.copied.append(("back", blocks))

    def forget(self, sequence: Sequence) -> None:
        self.computed.pop(sequence, None)


def decode_job(length: int, max_tokens: int = 4) -> DecodeJob:
    return DecodeJob(sequence(length, max_tokens))


class SilentDelivery:
    """A transfer that goes nowhere: scheduling does not depend on it."""

    sent_bytes = 0
    path: Path = "grpc"

    def ready(self, tokens: int) -> None:
        """Nothing is sent."""

    def layer_ready(self, layer: int, tokens: int) -> None:
        """Nothing is sent."""

    def renew(self) -> None:
        """There is no lease."""

    async def finish(self, first: GeneratedToken) -> None:
        """Nobody receives it."""

    async def acknowledged(self) -> None:
        """At once."""

    def abort(self) -> None:
        """Nothing to undo."""


def prefill_job(length: int, images: tuple[ImageSpan, ...] = ()) -> PrefillJob:
    return PrefillJob(sequence(length, images=images), SilentDelivery())
