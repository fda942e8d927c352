"""When an answer is complete."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from common.engine.sequence import Sequence

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
