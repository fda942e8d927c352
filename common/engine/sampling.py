"""The sampling settings of one request, checked when built. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from triptych.errors import InvalidArgumentError

MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as in vLLM: dividing by less says nothing more and overflows."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the tokens of one answer; the meanings are those of vLLM and the OpenAI API.

    `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` is an unsigned 64-bit number; the router draws one where the
    client gave none, so that a second worker can continue the same stream. `sample_index` counts the answers of
    one request (`n`) from 0. `logprobs` is None (off) or how many alternatives to report besides the chosen token.
    Raises InvalidArgumentError with `param` set to the field and the limit in the message.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    sample_index: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_filters()
        self._check_penalties()

    def _check_counts(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        _require(self.sample_index >= 0, "sample_index", "at least 0", self.sample_index)
        _require(self.seed is None or 0 <= self.seed < 2**64, "seed", "between 0 and 2**64 - 1", self.seed)
        in_range = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        _require(in_range, "logprobs", f"between 0 and {MAX_LOGPROBS}", self.logprobs)
        negative = [token for token in self.stop_token_ids if token < 0]
        _require(not negative, "stop_token_ids", "token ids of at least 0", negative)

    def _check_filters(self) -> None:
        finite = 0 <= self.temperature < math.inf
        _require(finite, "temperature", "a finite number of at least 0", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "over 0 and at most 1", self.top_p)
        _require(self.top_k >= 0, "top_k", "at least 0 (0 turns it off)", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p", "between 0 and 1", self.min_p)

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, name, "between -2 and 2", getattr(self, name))
        finite = 0 < self.repetition_penalty < math.inf
        _require(finite, "repetition_penalty", "a finite number over 0", self.repetition_penalty)

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        """True if tokens seen before change the distribution."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class SamplingState(Protocol):
    """What the sampler needs of a sequence. See `common.engine.sequence.Sequence`."""

    @property
    def params(self) -> SamplingParams:
        """The request's settings."""

    @property
    def num_outputs(self) -> int:
        """Tokens of the answer so far: the index of the token to be chosen."""

    @property
    def token_counts(self) -> Mapping[int, int]:
        """How often each token of prompt or answer occurs in the answer; 0 for one that is only in the prompt."""

    def allowed_tokens(self) -> bytes | None:
        """Which tokens the answer's grammar lets follow, one bit a token from the lowest of the first byte; None
        without a grammar, no bit at all when the answer cannot go on.
        """


def _require(holds: bool, param: str, limit: str, value: object) -> None:
    # Written as "holds" so that NaN, for which every comparison is false, is refused too.
    if not holds:
        raise InvalidArgumentError(f"{param} must be {limit}, not {value}", param=param)
