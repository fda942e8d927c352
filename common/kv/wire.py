"""How KV blocks are cut into messages, and the layout's wire form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.engine.layout import KvLayout
from triptych.v1 import types_pb2

LAYOUT_VERSION = 1
"""Rises whenever the bytes of a block change their meaning."""

MESSAGE_BYTES = 1 << 20
"""Aim of a message; loopback throughput is best at 1 to 2 MiB (protobuf copies), and far below the limit."""


def layout_to_proto(layout: KvLayout) -> types_pb2.KvLayout:
    """The form in which workers compare layouts."""
    return types_pb2.KvLayout(
        version=LAYOUT_VERSION,
        dtype=layout.dtype,
        num_layers=layout.layers,
        num_kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        block_size=layout.block_size,
    )


@dataclass(frozen=True, slots=True)
class Slab:
    """Consecutive blocks (indices within a reservation) in consecutive layers: the content of one message."""

    first_layer: int
    num_layers: int
    first_block: int
    num_blocks: int

    @property
    def layers(self) -> range:
        """Layer numbers."""
        return range(self.first_layer, self.first_layer + self.num_layers)

    @property
    def end_block(self) -> int:
        """One past the last block."""
        return self.first_block + self.num_blocks


def cut(first_block: int, end_block: int, layout: KvLayout, message_bytes: int = MESSAGE_BYTES) -> Iterator[Slab]:
    """Slabs that cover the blocks in all layers, each at most `message_bytes` unless one block of one layer is larger.

    Small blocks travel with several layers in a message, large ones with several blocks of one layer.
    """
    per_message = max(1, message_bytes // layout.bytes_per_layer_block)
    blocks = min(per_message, end_block - first_block)
    layers = max(1, min(layout.layers, per_message // max(1, blocks)))
    for layer in range(0, layout.layers, layers):
        for block in range(first_block, end_block, max(1, blocks)):
            yield Slab(layer, min(layers, layout.layers - layer), block, min(blocks, end_block - block))
