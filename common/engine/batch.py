"""One step's work as packed tensors: the tokens of several sequences one after another, without padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.engine.chunking import cut_before
from common.engine.layout import blocks_for
from common.engine.sequence import Sequence
from triptych.errors import InternalError


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start..end-1 of one sequence, computed in this step; they begin at row `row` of the batch."""

    sequence: Sequence
    start: int
    end: int
    row: int

    @property
    def length(self) -> int:
        """Tokens computed."""
        return self.end - self.start

    @property
    def complete(self) -> bool:
        """True if nothing of the sequence is left after this segment, so its next token can be sampled."""
        return self.end == self.sequence.num_tokens


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens of a ragged batch.

    token_ids (T,) int64; positions (rows, T) int64; slots (T,) int64, where each token's KV goes; logits_rows (n,)
    int64, the last row of each complete segment in order. All on the model's device.
    """

    segments: tuple[Segment, ...]
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logits_rows: Tensor

    @property
    def finishing(self) -> tuple[Sequence, ...]:
        """The sequences whose logits `logits_rows` selects, in that order."""
        return tuple(segment.sequence for segment in self.segments if segment.complete)


def context_slots(sequence: Sequence, end: int, block_size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Slots of tokens 0..end-1 of a sequence, (end,) int64. Raises InternalError if its blocks do not reach so far."""
    needed = blocks_for(end, block_size)
    if len(sequence.block_table) < needed:
        raise InternalError(f"{len(sequence.block_table)} blocks for {end} tokens of {sequence.request_id}")
    first = np.asarray(sequence.block_table[:needed], dtype=np.int64) * block_size
    return (first[:, None] + np.arange(block_size)).reshape(-1)[:end]


def pack(work: Iterable[tuple[Sequence, int, int]], block_size: int, device: torch.device) -> PackedBatch:
    """Build the batch of (sequence, start, end) entries, in their order. Raises InternalError for an empty entry."""
    segments = _segments(work)
    if not segments:
        raise InternalError("a step without work")
    tokens = [token for part in segments for token in part.sequence.token_ids(part.start, part.end)]
    positions = np.concatenate([part.sequence.position_ids(part.start, part.end) for part in segments], axis=1)
    slots = np.concatenate([_new_slots(part, block_size) for part in segments])
    last_rows = [part.row + part.length - 1 for part in segments if part.complete]
    return PackedBatch(
        segments=segments,
        token_ids=torch.tensor(tokens, dtype=torch.int64, device=device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        logits_rows=torch.tensor(last_rows, dtype=torch.int64, device=device),
    )


def _segments(work: Iterable[tuple[Sequence, int, int]]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    row = 0
    for sequence, start, end in work:
        if not 0 <= start < end <= sequence.num_tokens:
            raise InternalError(f"tokens {start}..{end} of {sequence.request_id}, which has {sequence.num_tokens}")
        if any(cut_before(edge, sequence.uncut) != edge for edge in (start, end)):
            raise InternalError(f"tokens {start}..{end} of {sequence.request_id} cut an image that must stay whole")
        segments.append(Segment(sequence, start, end, row))
        row += end - start
    return tuple(segments)


def _new_slots(segment: Segment, block_size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    # A decode step of a long sequence must not build its whole slot list to read the last entry.
    table = segment.sequence.block_table
    if len(table) < blocks_for(segment.end, block_size):
        raise InternalError(f"{len(table)} blocks for {segment.end} tokens of {segment.sequence.request_id}")
    index = np.arange(segment.start, segment.end, dtype=np.int64)
    first = segment.start // block_size
    blocks = np.asarray(table[first : blocks_for(segment.end, block_size)], dtype=np.int64)
    return blocks[index // block_size - first] * block_size + index % block_size
