"""Where attention reads: slots and masks of one step's segments, worked out once for all layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.engine.batch import Segment, context_slots
from common.engine.layout import blocks_for

MAX_PADDING = 2
"""In a decode bucket the longest context is at most this many times the shortest."""
MAX_GATHERED = 65536
"""Tokens, padding included, whose KV one decode call copies together; what bounds the workspace of a step."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """Rows first..last-1 of the batch, whose context is at `context` (L,) int64, the chunk's own tokens last.

    `whole` are the images of the chunk whose tokens attend to each other both ways, as (begin, end) in the context.
    """

    first: int
    last: int
    context: Tensor
    whole: tuple[tuple[int, int], ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the chunk."""
        return self.last - self.first

    @property
    def end(self) -> int:
        """Tokens of the context."""
        return len(self.context)

    def reach(self, window: int | None) -> int:
        """The first token that any token of the chunk reads in layers that see the last `window` tokens only."""
        return 0 if window is None else max(0, self.end - self.length + 1 - window)

    def mask(self, window: int | None) -> Tensor | None:
        """(chunk, context from `reach` on) bool, True: read; None for plain causal attention.

        As in Gemma 3: back to the beginning and forth to the end of one's own image, then all within the window.
        """
        if not self.whole and (window is None or window >= self.end):
            return None
        start, begin = self.end - self.length, self.reach(window)
        query = torch.arange(start, self.end, device=self.context.device)[:, None]
        key = torch.arange(begin, self.end, device=self.context.device)
        read = key <= query
        for first, last in self.whole:
            read[first - start : last - start, max(0, first - begin) : last - begin] = True
        return read if window is None else read & (key > query - window)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """B single tokens at `rows` (B,) int64 of the batch; `context` (B, L) int64; `mask` (B, 1, 1, L) bool, True: read.

    Padded entries of `context` point to the sequence's own first slot: a masked value still meets a factor 0, and 0
    times the NaN of a stranger would be NaN.
    """

    rows: Tensor
    context: Tensor
    mask: Tensor
    shortest: int

    def within(self, window: int | None) -> DecodePlan:
        """The plan of layers that see the last `window` tokens only."""
        length = self.context.shape[1]
        if window is None or window >= length:
            return self
        begin = max(0, self.shortest - window)
        ends = self.mask.sum(dim=-1, keepdim=True)
        recent = torch.arange(begin, length, device=self.mask.device) >= ends - window
        return DecodePlan(self.rows, self.context[:, begin:], self.mask[..., begin:] & recent, self.shortest)


def plan_chunk(segment: Segment, block_size: int, device: torch.device) -> ChunkPlan:
    """Plan a segment of several tokens."""
    context = torch.from_numpy(context_slots(segment.sequence, segment.end, block_size)).to(device)
    inside = [span for span in segment.sequence.uncut if segment.start <= span.offset < segment.end]
    whole = tuple((span.offset, span.end) for span in inside)
    return ChunkPlan(segment.row, segment.row + segment.length, context, whole)


def plan_decode(segments: Iterable[Segment], block_size: int, device: torch.device) -> list[DecodePlan]:
    """Plan single-token segments in as few padded groups as the padding bound allows."""
    return [_plan_bucket(bucket, block_size, device) for bucket in _buckets(segments)]


def _buckets(segments: Iterable[Segment]) -> list[list[Segment]]:
    buckets: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda part: part.end):
        if buckets and _fits(buckets[-1], segment.end):
            buckets[-1].append(segment)
        else:
            buckets.append([segment])
    return buckets


def _fits(bucket: Sequence[Segment], length: int) -> bool:
    # Segments come by rising length, so the first is the shortest and the new one the longest.
    return length <= MAX_PADDING * bucket[0].end and (len(bucket) + 1) * length <= MAX_GATHERED


def _plan_bucket(bucket: Sequence[Segment], block_size: int, device: torch.device) -> DecodePlan:
    lengths = torch.tensor([segment.end for segment in bucket], device=device)
    longest = bucket[-1].end
    tables = torch.from_numpy(_padded_tables(bucket, block_size)).to(device)
    index = torch.arange(longest, device=device)
    mask = index < lengths[:, None]
    # Token 0 of a sequence is the first slot of its first block.
    token = torch.where(mask, index, 0)
    context = tables.gather(1, token // block_size) * block_size + token % block_size
    rows = torch.tensor([segment.row for segment in bucket], device=device)
    return DecodePlan(rows, context, mask[:, None, None, :], bucket[0].end)


def _padded_tables(bucket: Sequence[Segment], block_size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    tables = np.zeros((len(bucket), blocks_for(bucket[-1].end, block_size)), dtype=np.int64)
    for row, segment in enumerate(bucket):
        used = blocks_for(segment.end, block_size)
        tables[row, :used] = segment.sequence.block_table[:used]
    return tables
