"""When an answer is complete, or cannot go on."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

from common.engine.sampler import SampledToken
from common.engine.sequence import Sequence
from triptych.errors import InternalError, InvalidArgumentError, TriptychError

FinishReason = Literal["stop", "length"]


def finish_reason(sequence: Sequence, eos_token_ids: Collection[int], max_length: int) -> FinishReason | None:
    """Why `sequence` ends with its newest output token, or None if it goes on.

    `max_length` is how many tokens prompt and output may have together: the model's context. Stop strings need text
    and are the router's. A stop token that is also the last allowed token counts as "stop", as in vLLM.
    """
    if not sequence.output_ids:
        return None
    newest, params = sequence.output_ids[-1], sequence.params
    if newest in params.stop_token_ids or (newest in eos_token_ids and not params.ignore_eos):
        return "stop"
    if sequence.num_outputs >= params.max_tokens or sequence.num_tokens >= max_length:
        return "length"
    return None


def failure(sequence: Sequence, token: SampledToken) -> TriptychError | None:
    """Why `sequence` cannot go on with `token`, or None if it can. Its KV may be broken then, too."""
    if not math.isnan(token.logprob):
        return None
    if sequence.grammar is not None and sequence.grammar.failed:
        return InvalidArgumentError("the grammar is too complex, or its answer cannot go on", param="sampling.grammar")
    return InternalError("the model's output is not a number")
