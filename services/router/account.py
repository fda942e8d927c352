"""The account of one request: what it cost and where the time went."""

from __future__ import annotations

from collections.abc import Callable

from triptych.v1.encoder_pb2 import EncodeOutcome, EncodeResponse
from triptych.v1.prefill_pb2 import PrefillResponse
from triptych.v1.types_pb2 import Prompt, StageTimes, Usage

Clock = Callable[[], int]


class Account:
    """Collects marks on the way; `clock` is monotonic, in nanoseconds. Acceptance is when it is built."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accepted = clock()
        self._prefill_opened = self._accepted
        self._first_token: int | None = None
        self._encode_began: int | None = None
        self._encode_ended = 0
        self._outcomes: dict[str, EncodeOutcome.ValueType] = {}
        self._prefill = PrefillResponse()
        self.completion_tokens = 0

    def encode_began(self) -> None:
        """Encoders were called; only the first time counts."""
        if self._encode_began is None:
            self._encode_began = self._clock()

    def encoded(self, response: EncodeResponse) -> None:
        """An embedding is ready. What an attempt computed stays computed when the next one finds it in the store."""
        self._outcomes.setdefault(response.embedding_key, response.outcome)
        self._encode_ended = self._clock()

    def prefill_opened(self) -> None:
        """A prefill worker got the prompt."""
        self._prefill_opened = self._clock()

    def prefilled(self, response: PrefillResponse) -> None:
        """Prefill is complete."""
        self._prefill = response

    def received(self, tokens: int) -> None:
        """Tokens of the answer arrived."""
        self.completion_tokens += tokens
        if self._first_token is None:
            self._first_token = self._clock()

    def usage(self, prompt: Prompt) -> Usage:
        """The account, closed now."""
        keys = [image.embedding_key for image in prompt.images]
        read, created = self._prefill.cache_read_tokens, self._prefill.cache_creation_tokens
        misses = sum(outcome == EncodeOutcome.ENCODE_OUTCOME_COMPUTED for outcome in self._outcomes.values())
        return Usage(
            prompt_tokens=len(prompt.token_ids),
            completion_tokens=self.completion_tokens,
            visual_tokens=sum(image.length for image in prompt.images),
            images=len(keys),
            unique_images=len(set(keys)),
            embedding_hits=len(self._outcomes) - misses,
            embedding_misses=misses,
            cache_read_tokens=read,
            cache_creation_tokens=created,
            uncached_tokens=max(0, len(prompt.token_ids) - read - created),
            kv_transfer_bytes=self._prefill.transfer_bytes,
            times=self._times(),
        )

    def _times(self) -> StageTimes:
        now = self._clock()
        began = self._encode_began
        return StageTimes(
            queue_ns=self._prefill_opened - self._accepted + self._prefill.queue_ns,
            encode_ns=max(0, self._encode_ended - began) if began is not None else 0,
            prefill_ns=self._prefill.compute_ns,
            transfer_ns=self._prefill.transfer_ns,
            first_token_ns=(self._first_token if self._first_token is not None else now) - self._accepted,
            total_ns=now - self._accepted,
        )
