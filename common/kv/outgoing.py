"""What of one prompt's KV is still to be sent. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from common.engine.layout import KvLayout
from common.kv.wire import CHUNK_BYTES, Slab

FIRST_BYTES = 1 << 20
"""Most of the first chunk; each may be twice the one before, up to `chunk_bytes`.

The receiver, which works at the same time, begins early, and much KV still takes few messages.
"""


class Outgoing:
    """Cells (layer, block) become ready in any order of layers, each layer from its first block on."""

    def __init__(self, layout: KvLayout, first_block: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._layout = layout
        self._chunk_bytes = chunk_bytes
        self._most_bytes = min(FIRST_BYTES, chunk_bytes)
        self._ready = [first_block] * layout.layers
        self._slabs: deque[Slab] = deque()

    def __bool__(self) -> bool:
        """True if something can be sent now."""
        return bool(self._slabs)

    def ready(self, layers: Iterable[int], end_block: int) -> None:
        """The blocks before `end_block` are final in `layers`."""
        for layer in layers:
            begin = self._ready[layer]
            if end_block > begin:
                self._slabs.append(Slab(layer, 1, begin, end_block - begin))
                self._ready[layer] = end_block

    def size_of(self, slab: Slab) -> int:
        """Bytes of a slab."""
        return slab.size_bytes(self._layout)

    def resend(self, missing: Iterable[Slab]) -> None:
        """The receiver lacks exactly these: send those of them that are ready, and the others once they are."""
        self._slabs = deque(part for slab in missing for part in self._final(slab))

    def take(self) -> Slab | None:
        """The next chunk's cells, or None. Following layers are joined while the chunk stays small."""
        if not self._slabs:
            return None
        slab = self._shortened(self._joined())
        self._most_bytes = min(2 * self._most_bytes, self._chunk_bytes)
        return slab

    def _joined(self) -> Slab:
        """Layers that fit into a chunk together, or one layer, which may be larger."""
        slab = self._slabs.popleft()
        while self._slabs and (longer := slab.joined(self._slabs[0])):
            if longer.size_bytes(self._layout) > self._most_bytes:
                break
            slab = longer
            self._slabs.popleft()
        return slab

    def _shortened(self, slab: Slab) -> Slab:
        most = max(1, self._most_bytes // self._layout.bytes_per_layer_block)
        if slab.num_blocks <= most:
            return slab
        self._slabs.appendleft(Slab(slab.first_layer, 1, slab.first_block + most, slab.num_blocks - most))
        return Slab(slab.first_layer, 1, slab.first_block, most)

    def _final(self, slab: Slab) -> Iterator[Slab]:
        for layer in slab.layers:
            end = min(slab.end_block, self._ready[layer])
            if end > slab.first_block:
                yield Slab(layer, 1, slab.first_block, end - slab.first_block)
