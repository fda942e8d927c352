"""The shape of one KV block: what two workers must agree on before blocks may travel between them."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One block of one layer is (block_size, 2, kv_heads, head_dim) in `dtype`, keys at index 0, values at index 1.

    `dtype` is torch's name without the prefix. Free of torch, so that anyone can compare or print it.
    """

    dtype: str
    layers: int
    kv_heads: int
    head_dim: int
    block_size: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"KV dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}", param="dtype")
        for name in ("layers", "kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a KV layout must be at least 1, not {getattr(self, name)}", param=name)

    @property
    def bytes_per_layer_block(self) -> int:
        """Bytes of one block in one layer."""
        return self.block_size * 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.layers * self.bytes_per_layer_block

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return self.bytes_per_block // self.block_size


def blocks_for(tokens: int, block_size: int) -> int:
    """Number of blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)
