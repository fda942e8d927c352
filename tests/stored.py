"""Embeddings in a store, without an encoder."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from common.store.embeddings import EmbeddingStore


async def publish(store: EmbeddingStore, key: str, owner: str, tensors: Mapping[str, Tensor]) -> int:
    """Pack and put, as a replica does; the bytes stored, 0 when there was no room."""
    value = store.pack(key, tensors)
    return len(value) if await store.put(key, owner, value) else 0
