"""How KV blocks are cut into messages and put together again, and the layout's wire form."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common.engine.kv_cache import KvCache
from common.engine.layout import KvLayout
from triptych.errors import InvalidArgumentError
from triptych.v1 import kv_pb2, types_pb2

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
    """Consecutive blocks (by index, not pool number) in consecutive layers: the content of one message."""

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

    def size_bytes(self, layout: KvLayout) -> int:
        """Bytes of its KV."""
        return self.num_layers * self.num_blocks * layout.bytes_per_layer_block

    def joined(self, following: Slab) -> Slab | None:
        """Both as one, if `following` is the same blocks in the next layers."""
        same_blocks = (self.first_block, self.num_blocks) == (following.first_block, following.num_blocks)
        if not same_blocks or following.first_layer != self.first_layer + self.num_layers:
            return None
        return replace(self, num_layers=self.num_layers + following.num_layers)


def cut(slab: Slab, layout: KvLayout, message_bytes: int = MESSAGE_BYTES) -> Iterator[Slab]:
    """Slabs that cover `slab`, each at most `message_bytes` unless one block of one layer is larger.

    Small blocks travel with several layers in a message, large ones with several blocks of one layer.
    """
    if not slab.num_blocks:
        return
    per_message = max(1, message_bytes // layout.bytes_per_layer_block)
    blocks = min(per_message, slab.num_blocks)
    layers = max(1, min(slab.num_layers, per_message // blocks))
    end_layer = slab.first_layer + slab.num_layers
    for layer in range(slab.first_layer, end_layer, layers):
        for block in range(slab.first_block, slab.end_block, blocks):
            yield Slab(layer, min(layers, end_layer - layer), block, min(blocks, slab.end_block - block))


def to_chunk(slab: Slab, cache: KvCache, blocks: Sequence[int]) -> kv_pb2.KvChunk:
    """Read `slab` from the cache; `blocks` are the pool numbers of its blocks."""
    data = b"".join(cache.export(layer, blocks) for layer in slab.layers)
    return kv_pb2.KvChunk(
        first_block=slab.first_block,
        num_blocks=slab.num_blocks,
        first_layer=slab.first_layer,
        num_layers=slab.num_layers,
        data=data,
        crc32=zlib.crc32(data),
    )


def slab_of(chunk: kv_pb2.KvChunk) -> Slab:
    """What a chunk says it covers."""
    return Slab(chunk.first_layer, chunk.num_layers, chunk.first_block, chunk.num_blocks)


def write_chunk(chunk: kv_pb2.KvChunk, cache: KvCache, blocks: Sequence[int]) -> None:
    """Write a chunk into the pool blocks `blocks`. InvalidArgumentError, and nothing written, when it is damaged."""
    slab, data = slab_of(chunk), memoryview(chunk.data)
    expected = slab.size_bytes(cache.layout)
    if len(data) != expected or zlib.crc32(data) != chunk.crc32:
        raise InvalidArgumentError(f"a KV chunk is damaged: {len(data)} of {expected} bytes", param="chunk")
    stride = slab.num_blocks * cache.layout.bytes_per_layer_block
    for index, layer in enumerate(slab.layers):
        cache.load(layer, blocks, data[index * stride : (index + 1) * stride])
