"""One prompt on a prefill worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from common.engine.chunking import ready_tokens
from common.engine.sampler import SampledToken
from common.engine.sequence import Sequence


@dataclass(eq=False, slots=True)
class Job:
    """A prompt, the embeddings that have arrived, and a future for its first token.

    `images[i]` are the named tensors of `sequence.images[i]`, None until ready. `on_progress(tokens)` is called on the
    event loop when more of the prompt's KV is final. Times are monotonic nanoseconds.
    """

    sequence: Sequence
    on_progress: Callable[[int], None]
    images: list[Mapping[str, Tensor] | None]
    first: asyncio.Future[SampledToken] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    submitted_ns: int = field(default_factory=time.monotonic_ns)
    started_ns: int = 0
    finished_ns: int = 0
    compute_ns: int = 0

    def __post_init__(self) -> None:
        # Nobody may be waiting any more when it fails; that is no reason for a warning.
        self.first.add_done_callback(lambda first: first.cancelled() or first.exception())

    @property
    def ready(self) -> int:
        """Tokens that can be computed: those before the first image without embedding."""
        return ready_tokens(self.sequence.num_prompt, self.sequence.images, [each is not None for each in self.images])

    @property
    def computed(self) -> bool:
        """True once the whole prompt has its KV."""
        return self.sequence.num_computed >= self.sequence.num_prompt

    def account(self, begin_ns: int, end_ns: int) -> None:
        """Note a step in which a chunk of this prompt was computed."""
        self.started_ns = self.started_ns or begin_ns
        self.compute_ns += end_ns - begin_ns
        self.finished_ns = end_ns

    def fail(self, error: Exception) -> None:
        """End the wait for the first token with an error."""
        if not self.first.done():
            self.first.set_exception(error)
