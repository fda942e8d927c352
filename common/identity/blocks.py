"""What a KV block stands for: everything from the start of the prompt to its end, pictures included.

Two pictures of one size fill a prompt with the same placeholder tokens, so the tokens alone would let one answer for
the other. Each block's hash therefore takes in, for every picture that overlaps it, the embedding key *and* the part
of the picture that lies in the block. (Prefix caching by hash chains: vLLM; the offset was once left out there and
came back as a bug fix.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from triptych.digests import raw_digest
from triptych.v1 import types_pb2

ROOT_TAG = "triptych.kv-root.v1"
BLOCK_TAG = "triptych.kv-block.v1"


@dataclass(frozen=True, slots=True)
class KeyedSpan:
    """A picture in a prompt: `length` placeholders from token `offset` on, and its embedding key (hex)."""

    offset: int
    length: int
    embedding_key: str


def block_root(model_fingerprint: str, layout: Sequence[object], cache_scope: str) -> bytes:
    """Parent of every first block. `layout` is whatever decides the meaning of a block's bytes, block size included."""
    fields = [str(value).encode() for value in (model_fingerprint, *layout, cache_scope)]
    return raw_digest(ROOT_TAG, *fields)


@dataclass(slots=True)
class BlockChain:
    """Hashes of the full blocks of one token sequence, extended as it grows."""

    root: bytes
    block_size: int
    images: Sequence[KeyedSpan] = ()
    hashes: list[bytes] = field(default_factory=list)
    _next_image: int = 0

    def extend(self, new_token_ids: Sequence[int]) -> None:
        """Hash further full blocks: `new_token_ids` begins where the last hashed block ended; a rest is ignored."""
        for start in range(0, len(new_token_ids) - self.block_size + 1, self.block_size):
            self._append(new_token_ids[start : start + self.block_size])

    @property
    def num_tokens(self) -> int:
        """Tokens covered so far."""
        return len(self.hashes) * self.block_size

    def _append(self, token_ids: Sequence[int]) -> None:
        parent = self.hashes[-1] if self.hashes else self.root
        tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
        self.hashes.append(raw_digest(BLOCK_TAG, parent, tokens, *self._overlaps()))

    def _overlaps(self) -> list[bytes]:
        begin, end = self.num_tokens, self.num_tokens + self.block_size
        while self._next_image < len(self.images) and _end(self.images[self._next_image]) <= begin:
            self._next_image += 1
        found: list[bytes] = []
        for index in range(self._next_image, len(self.images)):
            span = self.images[index]
            if span.offset >= end:
                break
            first, last = max(span.offset, begin), min(_end(span), end)
            # Where in the block, how much, and from which row of the picture on.
            place = struct.pack("<III", first - begin, last - first, first - span.offset)
            found += [bytes.fromhex(span.embedding_key), place]
        return found


def _end(span: KeyedSpan) -> int:
    return span.offset + span.length


def prompt_chain(prompt: types_pb2.Prompt, model_fingerprint: str, layout: types_pb2.KvLayout) -> BlockChain:
    """The chain of a prompt on a worker with this model and KV layout, not extended yet; needs no tensors."""
    described = (
        layout.version,
        layout.dtype,
        layout.num_layers,
        layout.num_kv_heads,
        layout.head_dim,
        layout.block_size,
    )
    images = [KeyedSpan(span.offset, span.length, span.embedding_key) for span in prompt.images]
    return BlockChain(block_root(model_fingerprint, described, prompt.cache_scope), layout.block_size, images)
