"""What sampling settings do to logits: grammars, penalties, temperature, min_p, top_k and top_p, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.sampling import SamplingParams, SamplingState


def apply_grammars(logits: Tensor, masks: Sequence[bytes | None]) -> Tensor:
    """Logits (n, V) in which tokens that a row's mask lacks are -inf; the input itself if no row has one.

    A mask has one bit a token, the lowest bit of its first byte for token 0; tokens beyond its end are not allowed.
    """
    rows = [row for row, mask in enumerate(masks) if mask is not None]
    if not rows:
        return logits
    index = torch.tensor(rows, device=logits.device)
    allowed = np.stack([_bits(mask, logits.shape[-1]) for mask in masks if mask is not None])
    excluded = ~torch.from_numpy(allowed).to(logits.device)
    return logits.index_copy(0, index, logits.index_select(0, index).masked_fill(excluded, -math.inf))


def _bits(mask: bytes, length: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=length, bitorder="little")
    return bits.astype(np.bool_)


def apply_penalties(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    """Logits (n, V) with penalties for tokens seen before; the input itself if no row has any.

    Repetition counts prompt and output and divides positive or multiplies negative logits (Keskar et al., 2019);
    frequency and presence count the output only and subtract, as in the OpenAI API.
    """
    if not any(state.params.penalized for state in states):
        return logits
    rows, tokens, counts, factors = _seen(states, logits)
    values = logits[rows, tokens]
    repetition, frequency, presence = factors.unbind(-1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - frequency * counts
    values = values - presence * (counts > 0)
    return logits.index_put((rows, tokens), values)


def _seen(states: Sequence[SamplingState], like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows: list[int] = []
    tokens: list[int] = []
    counts: list[int] = []
    for row, state in enumerate(states):
        if state.params.penalized:
            rows += [row] * len(state.token_counts)
            tokens += state.token_counts.keys()
            counts += state.token_counts.values()
    penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in (s.params for s in states)]
    index = torch.tensor([rows, tokens], dtype=torch.int64, device=like.device)
    factors = torch.tensor(penalties, dtype=like.dtype, device=like.device)[index[0]]
    return index[0], index[1], torch.tensor(counts, dtype=like.dtype, device=like.device), factors


def apply_temperature_and_filters(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Logits (n, V) divided by temperature; tokens that min_p, top_k or top_p exclude become -inf."""
    logits = logits / _column(logits, [each.temperature for each in params])
    for setting, off, mask in (("min_p", 0.0, _mask_min_p), ("top_k", 0, _mask_top_k), ("top_p", 1.0, _mask_top_p)):
        rows = [row for row, each in enumerate(params) if getattr(each, setting) != off]
        if rows:
            index = torch.tensor(rows, device=logits.device)
            values = [getattr(params[row], setting) for row in rows]
            logits = logits.index_copy(0, index, mask(logits.index_select(0, index), values))
    return logits


def _mask_min_p(logits: Tensor, min_ps: list[float]) -> Tensor:
    # p < min_p * p_max, in logarithms: the normalizer cancels.
    floor = logits.amax(dim=-1, keepdim=True) + _column(logits, [math.log(min_p) for min_p in min_ps])
    return logits.masked_fill(logits < floor, -math.inf)


def _mask_top_k(logits: Tensor, top_ks: list[int]) -> Tensor:
    # Tokens equal to the k-th stay, as in vLLM.
    ks = [min(top_k, logits.shape[-1]) for top_k in top_ks]
    largest = logits.topk(max(ks), dim=-1).values
    kth = largest.gather(1, torch.tensor(ks, device=logits.device)[:, None] - 1)
    return logits.masked_fill(logits < kth, -math.inf)


def _mask_top_p(logits: Tensor, top_ps: list[float]) -> Tensor:
    # Nucleus sampling (Holtzman et al., 2020): the smallest set of likeliest tokens that reaches top_p. A token stays
    # if those before it do not reach it yet, so the first always does. Stable: ties must not depend on the batch.
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    reached = torch.softmax(ordered, dim=-1, dtype=torch.float64).cumsum(dim=-1)
    excluded = reached.roll(1, dims=-1) >= _column(reached, top_ps)
    excluded[:, 0] = False
    return logits.masked_fill(torch.zeros_like(excluded).scatter(1, order, excluded), -math.inf)


def _column(like: Tensor, values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
