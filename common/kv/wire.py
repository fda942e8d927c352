"""How KV blocks are cut into chunks and put together again, and the layout's wire form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from common.engine.layout import KvLayout
from triptych.errors import FailedPreconditionError
from triptych.v1 import kv_pb2, types_pb2

LAYOUT_VERSION = 1
"""Rises whenever the bytes of a block change their meaning."""

CHUNK_BYTES = 8 << 20
"""Most of a chunk, unless one block of one layer is larger; half of the message limit (`triptych.channel`)."""


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


def require_layout(ours: KvLayout, theirs: types_pb2.KvLayout) -> None:
    """FailedPreconditionError unless a peer's blocks are laid out as ours."""
    expected = layout_to_proto(ours)
    if theirs != expected:
        raise FailedPreconditionError(f"KV layouts differ: here {{{expected}}}, at the peer {{{theirs}}}")


@dataclass(frozen=True, slots=True)
class Slab:
    """Consecutive blocks (by index, not pool number) in consecutive layers: the content of one chunk."""

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
        return Slab(self.first_layer, self.num_layers + following.num_layers, self.first_block, self.num_blocks)


def cut(slab: Slab, layout: KvLayout, chunk_bytes: int) -> Iterator[Slab]:
    """Slabs that cover `slab`, each at most `chunk_bytes` unless one block of one layer is larger.

    Small blocks travel with several layers in a chunk, large ones with several blocks of one layer.
    """
    if not slab.num_blocks:
        return
    per_chunk = max(1, chunk_bytes // layout.bytes_per_layer_block)
    blocks = min(per_chunk, slab.num_blocks)
    layers = max(1, min(slab.num_layers, per_chunk // blocks))
    end_layer = slab.first_layer + slab.num_layers
    for layer in range(slab.first_layer, end_layer, layers):
        for block in range(slab.first_block, slab.end_block, blocks):
            yield Slab(layer, min(layers, end_layer - layer), block, min(blocks, slab.end_block - block))


def joined(slabs: Iterable[Slab]) -> list[Slab]:
    """The same cells with neighbouring layers put together."""
    out: list[Slab] = []
    for slab in slabs:
        merged = out[-1].joined(slab) if out else None
        if merged is None:
            out.append(slab)
        else:
            out[-1] = merged
    return out


def to_ranges(slabs: Iterable[Slab]) -> list[kv_pb2.KvRange]:
    """Wire form of slabs."""
    return [
        kv_pb2.KvRange(
            first_block=slab.first_block,
            num_blocks=slab.num_blocks,
            first_layer=slab.first_layer,
            num_layers=slab.num_layers,
        )
        for slab in slabs
    ]


def slab_of(message: kv_pb2.KvChunk | kv_pb2.KvRange) -> Slab:
    """What a chunk or a range says it covers."""
    return Slab(message.first_layer, message.num_layers, message.first_block, message.num_blocks)


def chunk_of(slab: Slab, seq: int) -> kv_pb2.KvChunk:
    """A chunk's message without its bytes."""
    return kv_pb2.KvChunk(
        first_block=slab.first_block,
        num_blocks=slab.num_blocks,
        first_layer=slab.first_layer,
        num_layers=slab.num_layers,
        seq=seq,
    )
