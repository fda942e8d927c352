"""Which device holds what in each topology, and how many tokens of KV that leaves room for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from common.capacity.costs import Cost, Costs
from common.engine.layout import KvLayout
from common.engine.memory import Usage, fit_pool
from triptych.errors import ConfigError

TOPOLOGIES = {
    "monolithic": ("encode+prefill+decode",),
    "E/PD": ("encode", "prefill+decode"),
    "E/P/D": ("encode", "prefill", "decode"),
}
"""Topology -> stages, each on a device of its own."""


@dataclass(frozen=True)
class Stage:
    """One device of a topology.

    `blocks` and `tokens` are None where no KV is kept, and 0 where the device is too small. `ratio` compares tokens
    with the monolith's; None without KV, or if the monolith has no room for any.
    """

    topology: str
    stage: str
    weights: Cost
    peak: Cost
    fits: bool
    blocks: int | None = None
    tokens: int | None = None
    ratio: float | None = None


def plan_topologies(costs: Costs, layout: KvLayout, budget_bytes: int) -> list[Stage]:
    """All stages of all topologies on devices of `budget_bytes` each.

    Raises ConfigError if not even a device with nothing but the language model has room for a block.
    """
    stages = [_place(topology, stage, costs, layout, budget_bytes) for topology, stage in _names()]
    if not any(stage.blocks for stage in stages):
        _fit(stages[-1], layout, budget_bytes)
    monolith = stages[0].tokens
    return [replace(stage, ratio=_ratio(stage.tokens, monolith)) for stage in stages]


def _names() -> Iterable[tuple[str, str]]:
    return ((topology, stage) for topology, stages in TOPOLOGIES.items() for stage in stages)


def _place(topology: str, name: str, costs: Costs, layout: KvLayout, budget_bytes: int) -> Stage:
    stage = Stage(topology, name, _weights(name, costs), _peak(name, costs), fits=False)
    if name == "encode":
        return replace(stage, fits=stage.weights.bytes + stage.peak.bytes <= budget_bytes)
    try:
        blocks = _fit(stage, layout, budget_bytes)
    except ConfigError:
        return replace(stage, blocks=0, tokens=0)
    return replace(stage, fits=True, blocks=blocks, tokens=blocks * layout.block_size)


def _weights(name: str, costs: Costs) -> Cost:
    if name == "encode":
        return costs.tower
    if "encode" in name:
        return _combine(costs.tower, costs.language, costs.tower.bytes + costs.language.bytes)
    return costs.language


def _peak(name: str, costs: Costs) -> Cost:
    if name in costs.peaks:
        return costs.peaks[name]
    # In the monolith tower and language model take turns, so the higher peak counts. That is the kindest reading: a
    # monolith that lets them overlap needs the sum.
    encode, language = costs.peaks["encode"], costs.peaks["prefill+decode"]
    return _combine(encode, language, max(encode.bytes, language.bytes))


def _combine(first: Cost, second: Cost, size: int) -> Cost:
    return Cost(size, "measured" if first.source == second.source == "measured" else "config")


def _fit(stage: Stage, layout: KvLayout, budget_bytes: int) -> int:
    return fit_pool(layout, budget_bytes, Usage(stage.weights.bytes, stage.peak.bytes)).blocks


def _ratio(tokens: int | None, monolith: int | None) -> float | None:
    return tokens / monolith if tokens is not None and monolith else None
