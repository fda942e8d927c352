"""Choosing the next token of each sequence from the model's logits."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from common.engine.filters import apply_grammars, apply_penalties, apply_temperature_and_filters
from common.engine.sampling import SamplingState
from triptych.errors import InternalError

_KEY_DOMAIN = b"triptych.sample.v1"


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token; log-probabilities are natural and of the model's own distribution, before any setting.

    `top_logprobs` has the most likely tokens first, as many as `SamplingParams.logprobs` asks for. A `logprob` that is
    NaN means that the model's logits of this row were broken (NaN or infinite), or that its grammar lets no token
    follow: fail this request, not its batch. See `common.engine.stopping.failure`.
    """

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@torch.inference_mode()
def sample(logits: Tensor, states: Sequence[SamplingState]) -> list[SampledToken]:
    """Choose one token for each row of `logits` (n, V) float32, which is left unchanged.

    In vLLM's order: grammar, penalties, temperature, min_p, top_k, top_p. Each row's result depends on that row and
    its state only, never on the other rows.
    """
    if logits.shape[0] != len(states):
        raise InternalError(f"{logits.shape[0]} rows of logits for {len(states)} sequences")
    if not states:
        return []
    logprobs = torch.log_softmax(logits, dim=-1)
    masks = [state.allowed_tokens() for state in states]
    chosen = _choose(apply_grammars(logits, masks), states)
    stuck = [row for row, mask in enumerate(masks) if mask is not None and not any(mask)]
    logprobs[stuck] = math.nan
    return _report(chosen, logprobs, states)


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The random number in [0, 1) of one output position.

    Counter-based (Salmon et al., SC 2011; here BLAKE3 as the keyed function): nothing is carried from one position to
    the next, so any worker can continue a stream that another began.
    """
    packed = _KEY_DOMAIN + struct.pack("<QIQ", seed, sample_index, position)
    bits = int.from_bytes(blake3(packed).digest(length=8), "little")
    return float(bits >> 11) * 2.0**-53


def _choose(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    adjusted = apply_penalties(logits, states)
    chosen = adjusted.argmax(dim=-1)
    rows = [row for row, state in enumerate(states) if not state.params.greedy]
    if rows:
        drawn = [states[row] for row in rows]
        index = torch.tensor(rows, device=logits.device)
        filtered = apply_temperature_and_filters(adjusted.index_select(0, index), [state.params for state in drawn])
        chosen[index] = _draw(filtered, [_uniform_of(state) for state in drawn])
    return chosen


def _uniform_of(state: SamplingState) -> float:
    params = state.params
    if params.seed is None:
        raise InternalError("a sequence without a seed reached the sampler")
    return uniform(params.seed, params.sample_index, state.num_outputs)


def _draw(logits: Tensor, uniforms: list[float]) -> Tensor:
    # Inverse of the cumulative distribution in vocabulary order: one number a token, and a logit that differs in its
    # last bit on another device moves a border between tokens by as little; an order by probability would swap them.
    cumulative = torch.softmax(logits, dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * total
    below_total = torch.nextafter(total, torch.zeros_like(total))
    chosen = torch.searchsorted(cumulative, torch.minimum(target, below_total), right=True).squeeze(-1)
    # Only a row of NaN gets past the end; see SampledToken.
    return chosen.clamp(max=logits.shape[-1] - 1)


def _report(chosen: Tensor, logprobs: Tensor, states: Sequence[SamplingState]) -> list[SampledToken]:
    tokens = chosen.tolist()
    values = logprobs.gather(1, chosen[:, None]).squeeze(1).tolist()
    tops = _top(logprobs, states)
    return [SampledToken(*found) for found in zip(tokens, values, tops, strict=True)]


def _top(logprobs: Tensor, states: Sequence[SamplingState]) -> list[tuple[tuple[int, float], ...]]:
    wanted = [min(state.params.logprobs or 0, logprobs.shape[-1]) for state in states]
    if not any(wanted):
        return [()] * len(states)
    values, tokens = logprobs.topk(max(wanted), dim=-1)
    rows = zip(tokens.tolist(), values.tolist(), wanted, strict=True)
    return [tuple(zip(ids[:count], logs[:count], strict=True)) for ids, logs, count in rows]
