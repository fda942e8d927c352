"""What goes into a step: chunk planning, the state of a sequence, packing, image pieces and decode buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.engine.batch import Segment, context_slots, pack
from common.engine.chunking import Chunk, Waiting, cut_before, plan_chunks, ready_tokens
from common.engine.images import pieces, splice
from common.engine.plan import MAX_GATHERED, MAX_PADDING, ChunkPlan, plan_decode
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.engine.stopping import finish_reason
from common.families.base import ImageSpan, Positions
from triptych.errors import ConfigError, InternalError, InvalidArgumentError

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0, max_tokens=4)
BLOCK = 4


def sequence(prompt: int, *, outputs: int = 0, rows: int = 3, images: tuple[ImageSpan, ...] = ()) -> Sequence:
    """Token i is 100 + i; position row r of token i is 10 * r + i, and after the prompt they go on from 50."""
    ids = np.arange(prompt)[None, :] + 10 * np.arange(rows)[:, None]
    made = Sequence("request", list(range(100, 100 + prompt)), Positions(ids, 50), GREEDY, images)
    for token in range(100 + prompt, 100 + prompt + outputs):
        made.append(token)
    made.block_table = list(range(30, 30 - made.missing_blocks(made.num_tokens, BLOCK), -1))
    return made


class TestSequence:
    @pytest.mark.parametrize(("start", "end"), [(0, 5), (2, 4), (3, 8), (5, 8), (6, 7), (0, 8)])
    def test_tokens_and_positions_run_over_the_end_of_the_prompt(self, start: int, end: int) -> None:
        made = sequence(5, outputs=3)
        assert made.token_ids(start, end) == list(range(100 + start, 100 + end))
        row = [0, 1, 2, 3, 4, 50, 51, 52]
        lifted = [0, 1, 2, 3, 4, 40, 41, 42]
        assert made.position_ids(start, end)[0].tolist() == row[start:end]
        assert made.position_ids(start, end)[1].tolist() == [10 + each for each in lifted[start:end]]

    def test_counts_distinguish_prompt_and_output(self) -> None:
        made = sequence(2)
        made.append(100)
        assert made.token_counts == {100: 1, 101: 0}
        made.append(100)
        made.append(7)
        assert made.token_counts == {100: 2, 101: 0, 7: 1}

    def test_tokens_of_an_earlier_worker_count_as_output(self) -> None:
        made = Sequence("r", [1, 2], Positions(np.zeros((1, 2), np.int64), 2), GREEDY, output_ids=[2, 9])
        assert (made.num_outputs, made.num_uncomputed, made.token_counts) == (2, 4, {1: 0, 2: 1, 9: 1})

    @pytest.mark.parametrize(("end", "missing"), [(1, 0), (8, 0), (9, 1), (16, 2), (17, 3)])
    def test_missing_blocks(self, end: int, missing: int) -> None:
        assert sequence(8).missing_blocks(end, BLOCK) == missing

    def test_an_empty_prompt_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no tokens"):
            sequence(0)

    def test_random_sampling_needs_a_seed(self) -> None:
        with pytest.raises(InvalidArgumentError, match="seed") as raised:
            Sequence("r", [1], Positions(np.zeros((1, 1), np.int64), 1), SamplingParams())
        assert raised.value.param == "seed"

    def test_positions_must_cover_the_prompt(self) -> None:
        with pytest.raises(InternalError, match="3 positions for 2"):
            Sequence("r", [1, 2], Positions(np.zeros((1, 3), np.int64), 3), GREEDY)


class TestFinishReason:
    @pytest.mark.parametrize(
        ("outputs", "changes", "reason"),
        [
            ([], {}, None),
            ([5], {}, None),
            ([5, 2], {}, "stop"),
            ([5, 2], {"ignore_eos": True}, None),
            ([5, 6], {"stop_token_ids": frozenset({6})}, "stop"),
            ([5, 6], {"stop_token_ids": frozenset({6}), "ignore_eos": True}, "stop"),
            ([5, 5, 5, 5], {}, "length"),
            ([5, 5, 5, 2], {}, "stop"),
            ([5, 5], {"max_tokens": 9}, None),
            ([5, 5, 5, 5, 5, 5], {"max_tokens": 9}, "length"),
        ],
    )
    def test_stop_and_length(self, outputs: list[int], changes: dict[str, object], reason: str | None) -> None:
        made = sequence(4)
        made.params = replace(GREEDY, **changes)  # type: ignore[arg-type]
        made.output_ids = outputs
        assert finish_reason(made, {2}, max_length=10) == reason


class TestPack:
    def test_chunks_and_decode_steps_side_by_side(self) -> None:
        chunked, decoding = sequence(9), sequence(6, outputs=1)
        batch = pack([(chunked, 3, 6), (decoding, 6, 7), (chunked, 6, 9)], BLOCK, CPU)
        assert batch.token_ids.tolist() == [103, 104, 105, 106, 106, 107, 108]
        assert batch.positions[0].tolist() == [3, 4, 5, 50, 6, 7, 8]
        assert batch.positions.shape == (3, 7)
        assert batch.slots.tolist() == [123, 116, 117, 118, 118, 119, 112]
        assert batch.logits_rows.tolist() == [3, 6]
        assert batch.finishing == (decoding, chunked)

    def test_an_unfinished_prompt_wants_no_logits(self) -> None:
        batch = pack([(sequence(9), 0, 8)], BLOCK, CPU)
        assert batch.logits_rows.tolist() == []
        assert batch.finishing == ()

    def test_plain_positions_keep_one_row(self) -> None:
        assert pack([(sequence(3, rows=1), 0, 3)], BLOCK, CPU).positions.tolist() == [[0, 1, 2]]

    @pytest.mark.parametrize(("start", "end"), [(2, 2), (3, 2), (-1, 2), (0, 6)])
    def test_impossible_ranges_are_faults(self, start: int, end: int) -> None:
        with pytest.raises(InternalError):
            pack([(sequence(5), start, end)], BLOCK, CPU)

    def test_missing_blocks_are_a_fault(self) -> None:
        made = sequence(9)
        made.block_table.pop()
        with pytest.raises(InternalError, match="2 blocks for 9 tokens"):
            pack([(made, 0, 9)], BLOCK, CPU)
        with pytest.raises(InternalError, match="2 blocks for 9 tokens"):
            context_slots(made, 9, BLOCK)

    def test_a_step_without_work_is_a_fault(self) -> None:
        with pytest.raises(InternalError, match="without work"):
            pack([], BLOCK, CPU)

    def test_context_slots_follow_the_block_table(self) -> None:
        assert context_slots(sequence(9), 6, BLOCK).tolist() == [120, 121, 122, 123, 116, 117]


class TestImages:
    SPANS = (ImageSpan(2, 3, ()), ImageSpan(5, 2, ()))

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, 2, []),
            (0, 3, [(0, 2, 0, 1)]),
            (3, 4, [(0, 0, 1, 1)]),
            (4, 6, [(0, 0, 2, 1), (1, 1, 0, 1)]),
            (0, 9, [(0, 2, 0, 3), (1, 5, 0, 2)]),
            (7, 9, []),
        ],
    )
    def test_pieces_inside_a_chunk(self, start: int, end: int, expected: list[tuple[int, ...]]) -> None:
        batch = pack([(sequence(9, images=self.SPANS), start, end)], BLOCK, CPU)
        assert [(piece.index, piece.first, piece.offset, piece.length) for piece in pieces(batch)] == expected

    def test_rows_and_maps_land_where_the_placeholders_are(self) -> None:
        batch = pack([(sequence(1), 0, 1), (sequence(9, images=self.SPANS), 4, 9)], BLOCK, CPU)
        embeds = torch.zeros(6, 2, dtype=torch.bfloat16)
        visual = splice(embeds, batch, self.tensors)
        assert embeds[:, 0].tolist() == [0, 2, 10, 11, 0, 0]
        assert visual is not None
        assert visual.rows.tolist() == [1, 2, 3]
        assert [level[:, 0].tolist() for level in visual.deepstack] == [[102, 110, 111], [202, 210, 211]]
        assert visual.deepstack[0].dtype == torch.bfloat16

    def test_text_has_no_visual_inputs(self) -> None:
        batch = pack([(sequence(9, images=self.SPANS), 0, 2)], BLOCK, CPU)
        assert splice(torch.zeros(2, 2), batch, self.tensors) is None

    @pytest.mark.parametrize("named", [{}, {"embeddings": torch.zeros(2, 2)}, {"embeddings": torch.zeros(3, 3)}])
    def test_tensors_that_do_not_fit_are_a_fault(self, named: Mapping[str, Tensor]) -> None:
        batch = pack([(sequence(9, images=self.SPANS), 0, 4)], BLOCK, CPU)
        with pytest.raises(InternalError, match=r"embeddings of image 0 is .*\(3, 2\) wanted"):
            splice(torch.zeros(4, 2), batch, lambda *_: named)

    def test_images_must_agree_on_their_maps(self) -> None:
        batch = pack([(sequence(9, images=self.SPANS), 0, 9)], BLOCK, CPU)

        def uneven(sequence: Sequence, index: int) -> Mapping[str, Tensor]:
            names = ["embeddings", "deepstack.0"][: index + 1]
            return {name: torch.zeros(sequence.images[index].length, 2) for name in names}

        with pytest.raises(InternalError, match="deepstack maps"):
            splice(torch.zeros(9, 2), batch, uneven)

    @staticmethod
    def tensors(sequence: Sequence, index: int) -> Mapping[str, Tensor]:
        """Row i of image k is 10 * k + i; each deepstack level adds 100."""
        rows = (10.0 * index + torch.arange(sequence.images[index].length))[:, None].expand(-1, 2)
        return {"embeddings": rows, "deepstack.0": rows + 100, "deepstack.1": rows + 200}


def decode_segments(lengths: list[int]) -> list[Segment]:
    return [Segment(sequence(length), length - 1, length, row) for row, length in enumerate(lengths)]


class TestDecodeBuckets:
    @given(st.lists(st.integers(1, 200), max_size=30))
    def test_every_token_is_planned_once_and_padding_is_bounded(self, lengths: list[int]) -> None:
        plans = plan_decode(decode_segments(lengths), BLOCK, CPU)
        assert sorted(row for plan in plans for row in plan.rows.tolist()) == list(range(len(lengths)))
        for plan in plans:
            assert plan.context.shape[1] <= MAX_PADDING * min(lengths[row] for row in plan.rows.tolist())

    def test_equal_lengths_share_one_call(self) -> None:
        assert [plan.rows.tolist() for plan in plan_decode(decode_segments([9, 9, 9]), BLOCK, CPU)] == [[0, 1, 2]]

    def test_one_call_gathers_a_bounded_number_of_tokens(self) -> None:
        plans = plan_decode(decode_segments([MAX_GATHERED // 2 - 1] * 3), BLOCK, CPU)
        assert [len(plan.rows) for plan in plans] == [2, 1]

    def test_padding_reads_the_first_slot_of_its_own_sequence(self) -> None:
        (plan,) = plan_decode(decode_segments([6, 3]), BLOCK, CPU)
        assert plan.rows.tolist() == [1, 0]
        assert plan.context.tolist() == [[120, 121, 122, 120, 120, 120], [120, 121, 122, 123, 116, 117]]
        assert plan.mask[:, 0, 0].sum(-1).tolist() == [3, 6]


class TestReadyTokens:
    SPANS = (ImageSpan(3, 4, ()), ImageSpan(10, 4, ()))

    @pytest.mark.parametrize(
        ("ready", "tokens"), [([True, True], 20), ([True, False], 10), ([False, True], 3), ([False, False], 3)]
    )
    def test_the_first_missing_image_ends_the_prefix(self, ready: list[bool], tokens: int) -> None:
        assert ready_tokens(20, self.SPANS, ready) == tokens

    def test_text_is_ready(self) -> None:
        assert ready_tokens(20, (), ()) == 20


prompts = st.lists(
    st.integers(1, 60).flatmap(
        lambda total: st.tuples(st.integers(0, total - 1), st.just(total), st.integers(0, total))
    ),
    max_size=8,
).map(lambda rows: [Waiting(str(index), *row) for index, row in enumerate(rows)])


class TestPlanChunks:
    def test_a_lone_prompt_gets_the_whole_budget(self) -> None:
        assert plan_chunks([Waiting("a", 0, 100, 100)], 32) == [Chunk("a", 32)]

    def test_the_oldest_keeps_half_and_short_ones_pass_it(self) -> None:
        waiting = [Waiting("long", 0, 1000, 1000), Waiting("middle", 0, 100, 100), Waiting("short", 0, 10, 10)]
        assert plan_chunks(waiting, 64) == [Chunk("long", 32), Chunk("middle", 22), Chunk("short", 10)]

    def test_what_is_left_over_goes_to_the_oldest(self) -> None:
        waiting = [Waiting("long", 0, 1000, 1000), Waiting("short", 0, 10, 10)]
        assert plan_chunks(waiting, 64) == [Chunk("long", 54), Chunk("short", 10)]

    def test_a_prompt_that_waits_for_an_image_holds_up_nobody(self) -> None:
        waiting = [Waiting("blocked", 5, 1000, 5), Waiting("next", 0, 100, 7)]
        assert plan_chunks(waiting, 64) == [Chunk("next", 7)]

    def test_nothing_to_do(self) -> None:
        assert plan_chunks([], 64) == []
        assert plan_chunks([Waiting("blocked", 5, 9, 5)], 64) == []

    def test_a_budget_of_one_goes_to_the_oldest(self) -> None:
        assert plan_chunks([Waiting("a", 0, 9, 9), Waiting("b", 0, 1, 1)], 1) == [Chunk("a", 1)]

    def test_no_budget_is_a_bad_setting(self) -> None:
        with pytest.raises(ConfigError, match="at least one token"):
            plan_chunks([], 0)

    @given(prompts, st.integers(1, 64))
    def test_the_budget_is_spent_and_no_more_than_is_ready(self, waiting: list[Waiting], budget: int) -> None:
        chunks = {chunk.key: chunk.tokens for chunk in plan_chunks(waiting, budget)}
        by_key = {prompt.key: prompt for prompt in waiting}
        assert all(0 < tokens <= by_key[key].available for key, tokens in chunks.items())
        assert sum(chunks.values()) == min(budget, sum(prompt.available for prompt in waiting))

    def test_a_stream_of_short_prompts_does_not_starve_a_long_one(self) -> None:
        done = 0
        for step in range(20):
            waiting = [Waiting("long", done, 300, 300), *(Waiting(f"{step}.{n}", 0, 16, 16) for n in range(8))]
            done += {chunk.key: chunk.tokens for chunk in plan_chunks(waiting, 32)}.get("long", 0)
        assert done == 300


WHOLE = (ImageSpan(6, 20, ()), ImageSpan(30, 5, ()))


class TestUncutImages:
    @given(
        st.lists(st.sampled_from([0, 3, 6, 26, 28, 30, 35, 40]), min_size=1, max_size=6),
        st.integers(1, 64),
    )
    def test_no_chunk_ends_inside_one_and_the_oldest_always_goes_on(self, computed: list[int], budget: int) -> None:
        waiting = [Waiting(str(index), done, 44, 44, WHOLE) for index, done in enumerate(computed)]
        chunks = {chunk.key: chunk.tokens for chunk in plan_chunks(waiting, budget)}
        ends = [waiting[int(key)].computed + tokens for key, tokens in chunks.items()]
        assert all(cut_before(end, WHOLE) == end for end in ends)
        assert "0" in chunks
        assert sum(chunks.values()) <= max(budget, waiting[0].least)

    def test_one_larger_than_the_budget_is_computed_alone(self) -> None:
        waiting = [Waiting("a", 6, 44, 44, WHOLE), Waiting("b", 0, 4, 4)]
        assert plan_chunks(waiting, 8) == [Chunk("a", 20)]

    def test_one_that_is_not_there_yet_is_waited_for(self) -> None:
        assert plan_chunks([Waiting("a", 0, 44, 6, WHOLE)], 64) == [Chunk("a", 6)]
        assert plan_chunks([Waiting("a", 6, 44, 6, WHOLE)], 64) == []

    @pytest.mark.parametrize("edge", [(0, 7), (7, 26)])
    def test_a_batch_that_cuts_one_is_a_fault(self, edge: tuple[int, int]) -> None:
        cut = sequence(44, images=WHOLE)
        cut.whole_images = True
        with pytest.raises(InternalError, match="cut an image"):
            pack([(cut, *edge)], BLOCK, CPU)


class TestMasks:
    """Rows are queries, columns keys; what a token reads."""

    def test_plain_chunks_need_none(self) -> None:
        assert ChunkPlan(0, 3, torch.arange(7)).mask(None) is None
        assert ChunkPlan(0, 3, torch.arange(7)).mask(7) is None

    def test_an_image_is_read_both_ways_and_text_backwards(self) -> None:
        mask = ChunkPlan(0, 4, torch.arange(6), ((3, 5),)).mask(None)
        assert mask is not None
        assert mask.int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]

    def test_a_window_hides_what_is_far_and_reaches_no_farther(self) -> None:
        plan = ChunkPlan(0, 3, torch.arange(7), ((4, 6),))
        mask = plan.mask(2)
        assert (plan.reach(2), plan.reach(None)) == (3, 0)
        assert mask is not None
        assert mask.int().tolist() == [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]]

    def test_single_tokens_read_their_window(self) -> None:
        (plan,) = plan_decode(decode_segments([6, 3]), BLOCK, CPU)
        within = plan.within(2)
        assert within.mask[:, 0, 0].int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]
        assert plan.within(6) is plan
