"""One prompt on a prefill worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from common.engine.chunking import Waiting, ready_tokens
from common.engine.sampler import SampledToken
from common.engine.sequence import Sequence
from common.tracing import NO_SPAN, Interval, Span, record
from services.prefill.delivery import Delivery


def _quiet_future() -> asyncio.Future[SampledToken]:
    future: asyncio.Future[SampledToken] = asyncio.get_running_loop().create_future()
    # Nobody may be waiting any more when it fails; that is no reason for a warning.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


@dataclass(eq=False, slots=True)
class Job:
    """A prompt, the embeddings that have arrived, its transfer, and a future for its first token.

    `images[i]` are the named tensors of `sequence.images[i]`, None until ready. While `pulling`, blocks are being
    fetched and nothing is computed. With `has_blocks` the blocks are somebody else's, who also frees them. Times are
    monotonic nanoseconds.
    """

    sequence: Sequence
    delivery: Delivery
    has_blocks: bool = False
    pulling: bool = False
    images: list[Mapping[str, Tensor] | None] = field(init=False)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Future[SampledToken] = field(default_factory=_quiet_future)
    cached_tokens: int = 0
    pulled_tokens: int = 0
    span: Span = NO_SPAN
    submitted_ns: int = field(default_factory=time.monotonic_ns)
    started_ns: int = 0
    finished_ns: int = 0
    compute_ns: int = 0

    def __post_init__(self) -> None:
        self.images = [None] * len(self.sequence.images)

    @property
    def reusable(self) -> int:
        """Tokens that may come from a cache: all but the last, whose logits are wanted."""
        return self.sequence.num_given - 1

    @property
    def cacheable(self) -> int:
        """Tokens in full blocks of the prompt."""
        chain = self.sequence.chain
        return self.sequence.num_given // chain.block_size * chain.block_size if chain else 0

    @property
    def ready(self) -> int:
        """Tokens that can be computed: those before the first image that is neither here nor computed already."""
        computed = self.sequence.num_computed
        pairs = zip(self.images, self.sequence.images, strict=True)
        have = [tensors is not None or span.offset + span.length <= computed for tensors, span in pairs]
        return ready_tokens(self.sequence.num_given, self.sequence.images, have)

    def as_waiting(self, key: str) -> Waiting:
        """What the chunk planner sees, under the name `key`."""
        sequence = self.sequence
        return Waiting(key, sequence.num_computed, sequence.num_given, self.ready, sequence.uncut)

    @property
    def computed(self) -> bool:
        """True once the whole prompt has its KV."""
        return self.sequence.num_computed >= self.sequence.num_given

    def admit(self) -> None:
        """The prompt has blocks; the leading ones may be computed already."""
        self.cached_tokens = self.sequence.num_computed
        self.delivery.ready(self.cached_tokens)
        self.admitted.set()

    def account(self, begin_ns: int, end_ns: int, tokens: int) -> None:
        """Note a step in which a chunk of this prompt was computed."""
        record("prefill chunk", Interval(begin_ns, end_ns), self.span, tokens=tokens)
        self.started_ns = self.started_ns or begin_ns
        self.compute_ns += end_ns - begin_ns
        self.finished_ns = end_ns

    def fail(self, error: Exception) -> None:
        """End the wait for the first token with an error."""
        if not self.first.done():
            self.first.set_exception(error)
