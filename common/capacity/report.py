"""One capacity plan: from a model directory or a shape file to figures that print as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from common.capacity.costs import Costs, Workload, batch_for, costs_from_config, kv_layout_of
from common.capacity.shape import ModelShape, read_shape
from common.capacity.topology import Stage, plan_topologies
from common.capacity.weights import embedding_bytes_per_token
from common.engine.layout import DTYPE_BYTES
from triptych.errors import ConfigError

Measure = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class Question:
    """What is to be planned: exactly one of `model` and `shape`, on devices of `device_memory` bytes each.

    `share` of a device is used, as by a worker; `image_tokens` overrides the size of the largest picture.
    """

    model: Path | None = None
    shape: Path | None = None
    device_memory: int = 80 << 30
    share: float = 0.9
    work: Workload = field(default_factory=Workload)
    image_tokens: int | None = None
    measure: Measure = "auto"
    device: str = "cpu"

    @property
    def budget_bytes(self) -> int:
        """What a stage may hold."""
        return int(self.device_memory * self.share)


@dataclass(frozen=True)
class Plan:
    """The answer. `formula` has the costs by formula even where `stages` use measured ones."""

    shape: ModelShape
    question: Question
    formula: Costs
    stages: list[Stage]

    def figures(self) -> dict[str, Any]:
        """The plan as JSON values; sizes in bytes."""
        work, shape = self.question.work, self.shape
        return {
            "model": shape.name,
            "source": shape.source,
            "device_memory_bytes": self.question.device_memory,
            "budget_bytes": self.question.budget_bytes,
            "dtype": work.dtype,
            "block_size": work.block_size,
            "kv_bytes_per_token": kv_layout_of(shape, work).bytes_per_token,
            "embedding_bytes_per_token": embedding_bytes_per_token(shape, DTYPE_BYTES[work.dtype]),
            "largest_step": {role: asdict(step) for role, step in work.steps(shape.language.max_positions).items()},
            "largest_batch": asdict(batch_for(shape, work)),
            "formula": asdict(self.formula),
            "stages": [asdict(stage) for stage in self.stages],
        }


def make_plan(question: Question) -> Plan:
    """Raises ConfigError, or CheckpointError for a model that cannot be read, is not served or cannot be measured."""
    shape = _shape_of(question)
    layout = kv_layout_of(shape, question.work)
    formula = costs_from_config(shape, question.work)
    costs = _measured(question, shape, formula) or formula
    return Plan(shape, question, formula, plan_topologies(costs, layout, question.budget_bytes))


def _shape_of(question: Question) -> ModelShape:
    if (question.model is None) == (question.shape is None):
        raise ConfigError("name either a checkpoint directory with --model or a shape file with --shape")
    if question.model is None:
        return read_shape(cast("Path", question.shape))
    from common.capacity.checkpoint import checkpoint_shape  # noqa: PLC0415  (transformers; shape files do without)

    return checkpoint_shape(question.model, question.image_tokens)


def _measured(question: Question, shape: ModelShape, formula: Costs) -> Costs | None:
    if question.model is None or question.measure == "never":
        return None
    import torch  # noqa: PLC0415

    from common.capacity.measured import is_measurable, measure_costs  # noqa: PLC0415

    device = torch.device(question.device)
    size = formula.tower.bytes + formula.language.bytes
    if question.measure == "auto" and not is_measurable(question.model, device, size):
        return None
    return measure_costs(question.model, shape, question.work, device)
