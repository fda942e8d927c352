"""What a vision-language model consists of, in numbers: all that capacity depends on. Imports no torch.

A shape is read from a checkpoint's config, or from a JSON file for models that are not served here; the fields below
are the file's format, and `docs/capacity.md` explains it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.errors import ConfigError

Count = Annotated[int, Field(ge=1)]
Optional = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LanguageShape(_Part):
    """Token embeddings, decoder layers with a gated MLP and RMS norms, and head."""

    layers: Count
    hidden: Count
    intermediate: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab: Count
    max_positions: Count
    tied: bool = Field(False, description="the head is the token embeddings")
    qkv_bias: bool = False
    qk_norm: bool = Field(False, description="an RMS norm of head_dim on queries and one on keys")
    norms: Count = Field(2, description="RMS norms of a layer, besides those of queries and keys")


class Linear(_Part):
    """One linear layer of the projector."""

    inputs: Count
    outputs: Count
    bias: bool = True
    rows: Literal["tokens", "patches"] = Field("tokens", description="whether it runs before or after they are merged")


class VisionShape(_Part):
    """Vision tower and projector. A patch is one row inside the tower, a token one row of what comes out."""

    layers: Count
    hidden: Count
    intermediate: Count
    heads: Count
    mlp: Literal["plain", "gated"] = "plain"
    activation: Literal["gelu", "quick_gelu", "silu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    qkv_bias: bool = True
    block_extra: Optional = Field(0, description="further values of a block: layer scales, norms of queries and keys")
    patch_values: Count = Field(description="input values of one patch")
    patch_bias: bool = True
    positions: Optional = Field(0, description="rows of the learned position table")
    class_token: bool = False
    outer_norms: Optional = Field(0, description="values of norms outside the blocks and the projector")
    rotary: bool = Field(False, description="rotary positions, computed in float32")
    keeps_layers: bool = Field(False, description="the output of every layer stays until the end")
    projector: tuple[Linear, ...] = ()
    projector_extra: Optional = Field(0, description="values of the projector that are in no linear layer")
    maps: Count = Field(1, description="feature tensors a picture becomes, for example 4 with three DeepStack maps")
    image_patches: Count = Field(description="patches of the largest picture, class tokens included")
    image_tokens: Count = Field(description="tokens of the largest picture")
    attention_patches: Optional = Field(0, description="patches that attend to each other; 0: a whole picture")


class ModelShape(_Part):
    """A model, the figures' origin, and its two halves."""

    name: str
    source: str
    language: LanguageShape
    vision: VisionShape


def read_shape(path: Path) -> ModelShape:
    """The shape in a JSON file; ConfigError with one sentence for whatever is wrong with it."""
    try:
        return ModelShape.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the shape {path}: {error.strerror}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"the shape {path} is not usable: {problems}") from error
