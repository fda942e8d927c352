"""The arithmetic from costs to blocks, and the moments a peak is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.capacity_tables import SHAPES
from common.capacity.__main__ import parse_size, to_question
from common.capacity.costs import Cost, Costs, Workload, costs_from_config
from common.capacity.peak import Step, batch_of, language_moments, vision_moments
from common.capacity.report import Question, make_plan
from common.capacity.shape import read_shape
from common.capacity.topology import TOPOLOGIES, Stage, plan_topologies
from common.engine.layout import KvLayout
from services.decode.settings import DecodeSettings
from services.encoder.settings import EncoderSettings
from services.prefill.settings import PrefillSettings
from triptych.errors import ConfigError

LAYOUT = KvLayout("bfloat16", 2, 1, 16, 16)
BLOCK = LAYOUT.bytes_per_block
PEAKS = {"encode": 30, "prefill": 5, "decode": 10, "prefill+decode": 12}
SHAPE = read_shape(SHAPES / "internvl2-26b-like.json")


def costs(**peaks: int) -> Costs:
    """A tower of 20 blocks' size, a language model of 40, and peaks in blocks."""
    sizes = PEAKS | peaks
    peak = {role: Cost(size * BLOCK, "config") for role, size in sizes.items()}
    return Costs(Cost(20 * BLOCK, "measured"), Cost(40 * BLOCK, "measured"), peak)


def placed(budget: int, found: Costs) -> dict[tuple[str, str], Stage]:
    return {(stage.topology, stage.stage): stage for stage in plan_topologies(found, LAYOUT, budget * BLOCK)}


def test_every_device_of_every_topology_has_a_row() -> None:
    expected = [(topology, stage) for topology, stages in TOPOLOGIES.items() for stage in stages]
    assert list(placed(100, costs())) == expected


@pytest.mark.parametrize(
    ("topology", "stage", "blocks"),
    [
        ("monolithic", "encode+prefill+decode", 10),
        ("E/PD", "prefill+decode", 48),
        ("E/P/D", "prefill", 55),
        ("E/P/D", "decode", 50),
        ("E/PD", "encode", None),
    ],
)
def test_what_weights_and_peak_leave_becomes_blocks(topology: str, stage: str, blocks: int | None) -> None:
    assert placed(100, costs())[topology, stage].blocks == blocks


def test_the_ratio_is_against_the_monolith() -> None:
    assert placed(100, costs())["E/PD", "prefill+decode"].ratio == 4.8


def test_a_monolith_without_room_leaves_the_others_without_a_ratio() -> None:
    stages = placed(80, costs())
    assert not stages["monolithic", "encode+prefill+decode"].fits
    assert (stages["E/PD", "prefill+decode"].tokens, stages["E/PD", "prefill+decode"].ratio) == (28 * 16, None)


def test_an_encoder_may_be_what_does_not_fit() -> None:
    assert not placed(60, costs(encode=50))["E/PD", "encode"].fits


def test_a_budget_below_the_language_model_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="leaves no room for KV"):
        placed(45, costs())


def test_a_sum_is_measured_only_if_all_of_it_is() -> None:
    stage = placed(100, costs())["monolithic", "encode+prefill+decode"]
    assert (stage.weights.source, stage.peak.source) == ("measured", "config")


def test_the_defaults_are_the_services() -> None:
    work = Workload()
    assert work.step_tokens == PrefillSettings.model_fields["step_tokens"].default
    assert work.block_size == PrefillSettings.model_fields["block_size"].default
    assert work.sequences == DecodeSettings.model_fields["max_running"].default
    assert work.encoder_tokens == EncoderSettings.model_fields["max_batch_tokens"].default


def test_pictures_encoded_at_once_cost_the_monolith_its_kv() -> None:
    few, many = (costs_from_config(SHAPE, Workload(images=count)).peaks["encode"].bytes for count in (1, 10))
    assert many == 10 * few


@pytest.mark.parametrize("part", ["attention", "mlp", "sampling"])
def test_more_sequences_never_take_less(part: str) -> None:
    fewer, more = (language_moments(SHAPE.language, Step(512, n, 4096), 2, "fused")[part] for n in (1, 64))
    assert more > fewer


def test_scores_in_memory_cost_heads_times_length_squared() -> None:
    batch = batch_of(SHAPE.vision, 1, 4096)
    fused, eager = (vision_moments(SHAPE.vision, 6144, batch, 2, kind)["attention"] for kind in ("fused", "eager"))
    assert eager - fused == 25 * 13 * 1025**2 * 8


def test_a_picture_larger_than_the_encoders_limit_is_encoded_alone() -> None:
    assert batch_of(SHAPE.vision, None, 1000).pictures == 1
    assert batch_of(SHAPE.vision, None, 10_000).pictures == 3


def test_the_gain_of_the_largest_shape_at_eleven_pictures() -> None:
    plan = make_plan(Question(shape=SHAPES / "internvl2-26b-like.json", work=Workload(images=11)))
    ratio = plan.stages[2].ratio
    assert ratio is not None and 2.2 < ratio < 2.4


def test_flags_become_a_question() -> None:
    question = to_question({"device_memory": "24GiB", "images": 3, "dtype": None, "share": 0.5})
    assert (question.budget_bytes, question.work) == (12 << 30, replace(Workload(), images=3))


def test_an_unreadable_size_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="is no size of memory"):
        parse_size("eighty")


def test_a_question_without_a_model_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="either a checkpoint"):
        make_plan(Question())
