"""What the parts of a model cost in bytes, and how each figure is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.capacity.peak import Attention, Batch, Step, batch_of, language_moments, vision_moments
from common.capacity.shape import ModelShape
from common.capacity.weights import language_parameters, vision_parameters
from common.engine.layout import DTYPE_BYTES, KvLayout

Source = Literal["measured", "config"]


@dataclass(frozen=True)
class Cost:
    """Bytes, and whether they were measured or follow from the config."""

    bytes: int
    source: Source


@dataclass(frozen=True)
class Workload:
    """What the workers must be able to do at once; the defaults are those of the services.

    A prefill step computes `step_tokens` prompt tokens, a decode step one token of each of `sequences`, with up to
    `context` tokens each (None: all that the model has positions for). The encoder takes `images` pictures of the
    largest size in one step, None for as many as `encoder_tokens` visual tokens let in.
    """

    dtype: str = "bfloat16"
    block_size: int = 16
    step_tokens: int = 512
    sequences: int = 64
    context: int | None = None
    images: int | None = None
    encoder_tokens: int = 4096
    attention: Attention = "fused"

    def steps(self, max_positions: int) -> dict[str, Step]:
        """The largest step of each role on the language side, by role."""
        context = min(self.context or max_positions, max_positions)
        return {
            "prefill": Step(self.step_tokens, 0, context),
            "decode": Step(1, self.sequences, context),
            "prefill+decode": Step(self.step_tokens, self.sequences, context),
        }


@dataclass(frozen=True)
class Costs:
    """Weights of the halves, and the peak of each role's largest step by role ("encode", "prefill", ...)."""

    tower: Cost
    language: Cost
    peaks: dict[str, Cost]


def batch_for(shape: ModelShape, work: Workload) -> Batch:
    """The largest batch of the encoder."""
    return batch_of(shape.vision, work.images, work.encoder_tokens)


def kv_layout_of(shape: ModelShape, work: Workload) -> KvLayout:
    """The layout of a KV block; ConfigError for an unknown dtype."""
    text = shape.language
    return KvLayout(work.dtype, text.layers, text.kv_heads, text.head_dim, work.block_size)


def costs_from_config(shape: ModelShape, work: Workload) -> Costs:
    """Everything by formula."""
    size = DTYPE_BYTES[work.dtype]
    steps = work.steps(shape.language.max_positions)
    moments = {role: language_moments(shape.language, step, size, work.attention) for role, step in steps.items()}
    batch = batch_for(shape, work)
    moments["encode"] = vision_moments(shape.vision, shape.language.hidden, batch, size, work.attention)
    return Costs(
        Cost(vision_parameters(shape.vision) * size, "config"),
        Cost(language_parameters(shape.language) * size, "config"),
        {role: Cost(max(each.values()), "config") for role, each in moments.items()},
    )
