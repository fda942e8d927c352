"""The bytes of a chunk: where they lie, how they are copied, and their checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import xxhash

from common.engine.kv_cache import KvCache
from common.kv.wire import Slab, cut

PIECE_BYTES = 1 << 20
"""Small enough for the caches, large enough for the calls not to count."""


def checksum(data: bytes | bytearray | memoryview) -> int:
    """XXH3 of the bytes, 64 bits: sees every fault of memory and wire, quicker than the bytes can be copied."""
    return xxhash.xxh3_64_intdigest(data)


@dataclass(frozen=True, slots=True)
class SlabData:
    """A slab's KV in a cache: in `blocks`, the pool numbers of its blocks, layer after layer.

    Copies are made in pieces that stay in a core's cache between copying and checking.
    """

    slab: Slab
    cache: KvCache
    blocks: Sequence[int]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.slab.size_bytes(self.cache.layout)

    def views(self) -> list[memoryview]:
        """The bytes where they lie; pieces that follow each other."""
        return [view for layer in self.slab.layers for view in self.cache.views(layer, self.blocks)]

    def copy_to(self, out: memoryview) -> int:
        """Copy into memory of `size` bytes; the checksum of what was copied."""
        return self._copy(out, self.cache.export_into)

    def copy_from(self, data: memoryview) -> int:
        """Overwrite the blocks with `size` bytes that `copy_to` gave; the checksum of what was read."""
        return self._copy(data, self.cache.load)

    def _copy(self, data: memoryview, copy: Callable[[range, Sequence[int], memoryview], None]) -> int:
        layout, digest, at = self.cache.layout, xxhash.xxh3_64(), 0
        for part in cut(self.slab, layout, PIECE_BYTES):
            begin = part.first_block - self.slab.first_block
            piece = data[at : at + part.size_bytes(layout)]
            copy(part.layers, self.blocks[begin : begin + part.num_blocks], piece)
            # After the copy: a shared slot that changed meanwhile is then seen.
            digest.update(piece)
            at += len(piece)
        return digest.intdigest()


def checksum_of(pieces: Iterable[bytes | memoryview]) -> int:
    """The checksum of pieces that follow each other."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return digest.intdigest()
