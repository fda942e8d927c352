"""The KV tensors of one worker: keys and values of every block in every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from common.engine.layout import KvLayout
from triptych.errors import ConfigError, FailedPreconditionError, InternalError

VIEW_BYTES = 1 << 14
"""Below this mean size one copy costs less than handling the pieces."""


class KvCache:
    """One tensor (layers, blocks, block_size, 2, kv_heads, head_dim); slot = block * block_size + offset in the block.

    Keys and values of one token lie side by side, so one gather fetches both, and one block of one layer is one run of
    bytes, which is what the KV transfer moves. The tensor starts as zeros: attention reads only slots that were
    written, and an untouched page of zeros costs no memory on the CPU.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        shape = (layout.layers, num_blocks, layout.block_size, 2, layout.kv_heads, layout.head_dim)
        try:
            self._data = torch.zeros(shape, dtype=getattr(torch, layout.dtype), device=self.device)
        except RuntimeError as error:
            wanted = f"{num_blocks} KV blocks of {layout.bytes_per_block} bytes"
            raise ConfigError(f"no memory for {wanted}: {error}", param="blocks") from error
        self._slots = self._data.view(layout.layers, num_blocks * layout.block_size, 2, *shape[-2:])
        self._bytes = self._data.view(torch.uint8).view(layout.layers, num_blocks, layout.bytes_per_layer_block)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value, (T, kv_heads, head_dim) each, at slots (T,) int64."""
        rows = self._slots[layer]
        rows.select(1, 0).index_copy_(0, slots, key)
        rows.select(1, 1).index_copy_(0, slots, value)

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at slots (..., L) int64: two views (..., L, kv_heads, head_dim) of one copy."""
        rows = self._slots[layer].index_select(0, slots.flatten()).view(*slots.shape, *self._slots.shape[2:])
        key, value = rows.unbind(-3)
        return key, value

    def export(self, layer: int, blocks: Sequence[int]) -> memoryview:
        """A copy of the blocks of one layer in the order given: len(blocks) * layout.bytes_per_layer_block bytes."""
        self._check(blocks)
        if self.device.type == "cpu":
            return self._host_rows(layer)[list(blocks)].reshape(-1).data
        chosen = self._bytes[layer].index_select(0, torch.tensor(blocks, dtype=torch.int64, device=self.device))
        host: memoryview = chosen.flatten().cpu().numpy().data
        return host

    def views(self, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """As `export` in pieces that follow each other; without a copy where the blocks lie well enough."""
        self._check(blocks)
        ends = [at for at in range(1, len(blocks)) if blocks[at] != blocks[at - 1] + 1]
        scattered = (len(ends) + 1) * VIEW_BYTES > len(blocks) * self.layout.bytes_per_layer_block
        if self.device.type != "cpu" or (ends and scattered):
            return [self.export(layer, blocks)]
        rows, edges = self._host_rows(layer), [0, *ends, len(blocks)]
        runs = ((blocks[begin], blocks[end - 1] + 1) for begin, end in pairwise(edges) if end > begin)
        return [rows[first:end].reshape(-1).data for first, end in runs]

    def export_into(self, layers: range, blocks: Sequence[int], out: memoryview) -> None:
        """As `export` of consecutive layers, one after the other, into writable memory of exactly that size."""
        self._check(blocks)
        rows = np.frombuffer(out, dtype=np.uint8).reshape(len(layers), len(blocks), self.layout.bytes_per_layer_block)
        source = self._bytes[layers.start : layers.stop]
        if self.device.type == "cpu":
            # Blocks are checked; "clip" is what makes numpy write to `out` directly.
            np.take(source.numpy(), list(blocks), axis=1, out=rows, mode="clip")
            return
        index = torch.tensor(blocks, dtype=torch.int64, device=self.device)
        torch.from_numpy(rows).copy_(source.index_select(1, index))

    def load(self, layers: range, blocks: Sequence[int], buffer: bytes | bytearray | memoryview) -> None:
        """Overwrite blocks of consecutive layers with bytes that `export_into` gave, here or at another worker.

        Raises FailedPreconditionError if the buffer's size does not fit.
        """
        self._check(blocks)
        rows = np.frombuffer(buffer, dtype=np.uint8)
        shape = (len(layers), len(blocks), self.layout.bytes_per_layer_block)
        if rows.size != math.prod(shape):
            raise FailedPreconditionError(f"{rows.size} bytes sent for {len(blocks)} blocks of {self.layout}")
        rows, target = rows.reshape(shape), self._bytes[layers.start : layers.stop]
        if self.device.type == "cpu":
            target.numpy()[:, list(blocks)] = rows
            return
        # torch refuses to wrap read-only memory, which is what gRPC hands over: one more copy, on the host.
        staged = torch.from_numpy(rows.copy()).to(self.device)
        target.index_copy_(1, torch.tensor(blocks, dtype=torch.int64, device=self.device), staged)

    def _host_rows(self, layer: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        # numpy takes and puts whole rows with one memcpy each and without the GIL; torch has no such path for bytes.
        rows: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = self._bytes[layer].numpy()
        return rows

    def _check(self, blocks: Sequence[int]) -> None:
        # numpy would take -1 for the last block, which belongs to somebody else.
        if blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks:
            raise InternalError(f"a block of {list(blocks)[:8]} is not in a cache of {self.num_blocks}")
