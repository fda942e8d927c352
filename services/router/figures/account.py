"""The account of one request: what it cost and where the time went."""

from __future__ import annotations

from collections.abc import Callable

from triptych.v1.encoder_pb2 import EncodeOutcome, EncodeResponse
from triptych.v1.prefill_pb2 import PrefillResponse
from triptych.v1.types_pb2 import Prompt, StageTimes, Usage

Clock = Callable[[], int]
Gap = Callable[[int, int], None]


class Account:
    """Collects marks on the way; `clock` is monotonic, in nanoseconds. Unless given, acceptance is when it is built.

    `gap` is told how many nanoseconds passed since the tokens before, and how many tokens came then.
    """

    def __init__(self, clock: Clock, accepted_ns: int | None = None, gap: Gap = lambda ns, tokens: None) -> None:
        self._clock, self._gap = clock, gap
        self._accepted = clock() if accepted_ns is None else accepted_ns
        self._prefill_opened = self._accepted
        self._first_token: int | None = None
        self._last_token = 0
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

    @property
    def encoded_keys(self) -> set[str]:
        """Embedding keys that were computed for this request."""
        computed = EncodeOutcome.ENCODE_OUTCOME_COMPUTED
        return {key for key, outcome in self._outcomes.items() if outcome == computed}

    def prefill_opened(self) -> None:
        """A prefill worker got the prompt."""
        self._prefill_opened = self._clock()

    def prefilled(self, response: PrefillResponse) -> None:
        """Prefill is complete. Work and bytes of later attempts add up; what was cached is the first one's to say."""
        first = self._prefill
        if not first.ByteSize():
            first.CopyFrom(response)
            return
        first.compute_ns += response.compute_ns
        first.transfer_ns += response.transfer_ns
        first.transfer_bytes += response.transfer_bytes

    def received(self, tokens: int) -> None:
        """Tokens of the answer arrived."""
        self.completion_tokens += tokens
        now = self._clock()
        if self._first_token is None:
            self._first_token = now
        else:
            self._gap(now - self._last_token, tokens)
        self._last_token = now

    def usage(self, prompt: Prompt) -> Usage:
        """The account, closed now."""
        keys = [image.embedding_key for image in prompt.images]
        length = len(prompt.token_ids)
        # An attempt that went on with an answer had its tokens behind the prompt; they are not the prompt's.
        read = min(length, self._prefill.cache_read_tokens)
        created = min(length - read, self._prefill.cache_creation_tokens)
        misses = len(self.encoded_keys)
        return Usage(
            prompt_tokens=length,
            completion_tokens=self.completion_tokens,
            visual_tokens=sum(image.length for image in prompt.images),
            images=len(keys),
            unique_images=len(set(keys)),
            embedding_hits=len(self._outcomes) - misses,
            embedding_misses=misses,
            cache_read_tokens=read,
            cache_creation_tokens=created,
            uncached_tokens=length - read - created,
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
