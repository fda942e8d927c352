"""Sampling: settings and their limits, what each does to a distribution, and streams that depend on nothing else."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.filters import apply_penalties, apply_temperature_and_filters
from common.engine.sampler import SampledToken, sample, uniform
from common.engine.sampling import SamplingParams
from triptych.errors import InternalError, InvalidArgumentError

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
DRAWS = 20_000
# 99.99 % quantiles of chi-square: a right sampler fails one run in ten thousand, and seeds here are fixed anyway.
CHI_SQUARE_LIMIT = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7}


@dataclass
class State:
    """The least that the sampler needs of a sequence."""

    params: SamplingParams
    num_outputs: int = 0
    token_counts: dict[int, int] = field(default_factory=dict)
    mask: bytes | None = None

    def allowed_tokens(self) -> bytes | None:
        return self.mask


def params(**settings: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 7, **settings})


def only(logits: Tensor, state: State) -> SampledToken:
    (token,) = sample(logits[None], [state])
    return token


def frequencies(settings: SamplingParams, counts: dict[int, int] | None = None) -> Counter[int]:
    states = [State(settings, position, counts or {}) for position in range(DRAWS)]
    return Counter(token.token_id for token in sample(LOGITS.expand(DRAWS, -1), states))


def assert_distributed(drawn: Counter[int], expected: Tensor) -> None:
    """Pearson's chi-square test; tokens of probability 0 must not occur at all."""
    possible = [token for token, probability in enumerate(expected.tolist()) if probability > 0]
    assert set(drawn) <= set(possible)
    statistic = sum(
        (drawn[token] - DRAWS * float(expected[token])) ** 2 / (DRAWS * float(expected[token])) for token in possible
    )
    assert statistic < CHI_SQUARE_LIMIT[len(possible) - 1]


class TestParams:
    @pytest.mark.parametrize(
        ("name", "value", "limit"),
        [
            ("max_tokens", 0, "at least 1"),
            ("temperature", -0.1, "at least 0"),
            ("temperature", math.nan, "finite"),
            ("temperature", math.inf, "finite"),
            ("top_p", 0.0, "over 0 and at most 1"),
            ("top_p", 1.01, "over 0 and at most 1"),
            ("top_k", -1, "at least 0"),
            ("min_p", -0.1, "between 0 and 1"),
            ("min_p", 1.1, "between 0 and 1"),
            ("presence_penalty", 2.1, "between -2 and 2"),
            ("frequency_penalty", -2.1, "between -2 and 2"),
            ("frequency_penalty", math.nan, "between -2 and 2"),
            ("repetition_penalty", 0.0, "over 0"),
            ("repetition_penalty", math.inf, "finite"),
            ("seed", -1, "between 0 and 2\\*\\*64"),
            ("seed", 2**64, "between 0 and 2\\*\\*64"),
            ("sample_index", -1, "at least 0"),
            ("logprobs", 21, "between 0 and 20"),
            ("logprobs", -1, "between 0 and 20"),
            ("stop_token_ids", frozenset({-5}), "at least 0"),
        ],
    )
    def test_values_over_a_limit_name_the_setting_and_the_limit(self, name: str, value: Any, limit: str) -> None:
        with pytest.raises(InvalidArgumentError, match=limit) as raised:
            SamplingParams(**{name: value})
        assert raised.value.param == name

    def test_values_at_their_limits_are_fine(self) -> None:
        settings = SamplingParams(
            max_tokens=1, temperature=0, top_p=1, top_k=0, min_p=1, presence_penalty=-2, frequency_penalty=2,
            repetition_penalty=0.01, seed=2**64 - 1, logprobs=20,
        )  # fmt: skip
        assert settings.greedy


class TestGreedy:
    def test_takes_the_likeliest_token(self) -> None:
        assert only(LOGITS, State(params(temperature=0))).token_id == 0

    def test_needs_no_seed(self) -> None:
        assert only(LOGITS, State(SamplingParams(temperature=0))).token_id == 0

    def test_the_first_of_equals_wins(self) -> None:
        assert only(torch.tensor([0.0, 5.0, 5.0, 5.0]), State(params(temperature=0))).token_id == 1

    def test_ignores_top_p_and_top_k(self) -> None:
        assert only(LOGITS, State(params(temperature=0, top_k=3, top_p=0.1, min_p=0.5))).token_id == 0

    def test_follows_penalties(self) -> None:
        state = State(params(temperature=0, presence_penalty=2.0), 1, {0: 1})
        assert only(LOGITS, state).token_id == 1


class TestDistribution:
    def test_plain(self) -> None:
        assert_distributed(frequencies(params()), LOGITS.softmax(-1))

    @pytest.mark.parametrize("temperature", [0.5, 2.0])
    def test_temperature(self, temperature: float) -> None:
        assert_distributed(frequencies(params(temperature=temperature)), (LOGITS / temperature).softmax(-1))

    def test_top_k(self) -> None:
        expected = LOGITS.masked_fill(torch.arange(6) >= 3, -math.inf).softmax(-1)
        assert_distributed(frequencies(params(top_k=3)), expected)

    def test_top_p(self) -> None:
        # 0.55, 0.20, 0.12, ...: two tokens reach 0.7.
        expected = LOGITS.masked_fill(torch.arange(6) >= 2, -math.inf).softmax(-1)
        assert_distributed(frequencies(params(top_p=0.7)), expected)

    def test_min_p(self) -> None:
        # exp(-1.5) = 0.22 of the best stays, exp(-2) = 0.14 goes.
        expected = LOGITS.masked_fill(torch.arange(6) >= 3, -math.inf).softmax(-1)
        assert_distributed(frequencies(params(min_p=0.2)), expected)

    def test_penalties(self) -> None:
        counts = {0: 2, 4: 0}
        settings = params(repetition_penalty=1.25, frequency_penalty=0.3, presence_penalty=0.2)
        expected = LOGITS.clone()
        expected[0] = 2.0 / 1.25 - 2 * 0.3 - 0.2
        expected[4] = -1.0 * 1.25
        assert_distributed(frequencies(settings, counts), expected.softmax(-1))

    def test_every_seed_gives_its_own_stream_and_together_they_are_distributed(self) -> None:
        states = [State(params(seed=seed)) for seed in range(DRAWS)]
        drawn = Counter(token.token_id for token in sample(LOGITS.expand(DRAWS, -1), states))
        assert_distributed(drawn, LOGITS.softmax(-1))

    def test_a_token_of_probability_zero_is_never_drawn(self) -> None:
        logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
        states = [State(params(), position) for position in range(1000)]
        assert {token.token_id for token in sample(logits.expand(1000, -1), states)} == {1, 3}

    @pytest.mark.parametrize(("extreme", "token"), [(0.0, 1), (1 - 2.0**-53, 3)])
    def test_nor_at_the_ends_of_the_unit_interval(
        self, extreme: float, token: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("common.engine.sampler.uniform", lambda *_: extreme)
        logits = torch.tensor([-math.inf, 0.3, 0.1, 0.2, -math.inf])
        assert only(logits, State(params())).token_id == token


def kept(logits: Tensor, **settings: Any) -> list[int]:
    filtered = apply_temperature_and_filters(logits[None], [params(**settings)])
    return filtered[0].isfinite().nonzero().flatten().tolist()


class TestFilters:
    def test_top_k_keeps_ties(self) -> None:
        assert kept(torch.tensor([1.0, 3.0, 2.0, 2.0]), top_k=2) == [1, 2, 3]

    def test_top_k_over_the_vocabulary_keeps_all(self) -> None:
        assert kept(LOGITS, top_k=100) == [0, 1, 2, 3, 4, 5]

    def test_a_tiny_top_p_keeps_the_best(self) -> None:
        assert kept(LOGITS, top_p=1e-9) == [0]

    def test_top_p_keeps_the_token_that_crosses_it(self) -> None:
        logits = torch.tensor([0.5, 0.3, 0.2]).log()
        assert kept(logits, top_p=0.49) == [0]
        assert kept(logits, top_p=0.6) == [0, 1]
        assert kept(logits, top_p=0.9) == [0, 1, 2]

    def test_top_p_that_is_just_reached_needs_no_further_token(self) -> None:
        equal = torch.zeros(4)
        assert kept(equal, top_p=0.25) == [0]
        assert kept(equal, top_p=0.5) == [0, 1]
        assert kept(equal, top_p=0.501) == [0, 1, 2]

    @pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
    @pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
    def test_top_p_over_a_large_vocabulary(self, top_p: float, scale: float) -> None:
        """From a handful of tokens to nearly all of 5000."""
        logits = scale * torch.randn(5000, generator=torch.Generator().manual_seed(3))
        probabilities, order = logits.double().softmax(-1).sort(descending=True)
        count = int((probabilities.cumsum(-1) < top_p).sum()) + 1
        assert kept(logits, top_p=top_p) == sorted(order[:count].tolist())

    def test_top_p_counts_only_what_top_k_left(self) -> None:
        # Of four equals top_k cannot choose; of 0.4/0.3 of 0.7, the first alone is 0.57.
        logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
        assert kept(logits, top_k=2, top_p=0.55) == [0]
        assert kept(logits, top_p=0.55) == [0, 1]

    def test_min_p_of_one_keeps_the_best_and_its_equals(self) -> None:
        assert kept(torch.tensor([1.0, 1.0, 0.9]), min_p=1.0) == [0, 1]

    def test_min_p_comes_after_temperature(self) -> None:
        assert kept(LOGITS, min_p=0.5) == [0]
        assert kept(LOGITS, min_p=0.5, temperature=2.0) == [0, 1]

    def test_rows_have_their_own_settings(self) -> None:
        filtered = apply_temperature_and_filters(LOGITS.expand(3, -1), [params(top_k=1), params(), params(top_k=4)])
        assert filtered.isfinite().sum(-1).tolist() == [1, 6, 4]


class TestPenalties:
    def test_repetition_counts_the_prompt_the_others_do_not(self) -> None:
        state = State(params(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0), 3, {0: 0, 1: 3})
        (row,) = apply_penalties(LOGITS[None], [state])
        assert row.tolist() == [1.0, 0.5 - 3 - 1, 0.5, 0.0, -1.0, -3.0]

    def test_negative_logits_are_multiplied(self) -> None:
        (row,) = apply_penalties(LOGITS[None], [State(params(repetition_penalty=2.0), 0, {5: 0})])
        assert row[5] == -6.0

    def test_only_the_row_itself_and_not_the_input_is_changed(self) -> None:
        logits = LOGITS.repeat(2, 1)
        states = [State(params(), 1, {0: 1}), State(params(presence_penalty=1.0), 1, {0: 1})]
        changed = apply_penalties(logits, states)
        assert changed[0].tolist() == LOGITS.tolist()
        assert changed[1, 0] == 1.0
        assert logits[1].tolist() == LOGITS.tolist()


class TestStream:
    def test_pinned_values_of_the_random_function(self) -> None:
        """Another value here breaks streams that go on across an upgrade."""
        assert [uniform(7, 0, 0), uniform(7, 0, 1), uniform(7, 1, 0), uniform(8, 0, 0)] == PINNED

    def test_position_seed_and_index_matter(self) -> None:
        drawn = {uniform(seed, index, position) for seed in range(5) for index in range(5) for position in range(5)}
        assert len(drawn) == 125
        assert all(0 <= value < 1 for value in drawn)

    def test_a_stream_is_the_same_alone_and_among_others(self) -> None:
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(12, 5000, generator=generator)
        states = [State(params(seed=row, **SETTINGS[row % len(SETTINGS)]), row, {3: 1}) for row in range(12)]
        together = sample(logits, states)
        assert together == [only(row, state) for row, state in zip(logits, states, strict=True)]
        order = np.random.default_rng(2).permutation(12).tolist()
        shuffled = sample(logits[order], [states[row] for row in order])
        assert shuffled == [together[row] for row in order]

    def test_two_runs_agree(self) -> None:
        assert frequencies(params(top_p=0.9)) == frequencies(params(top_p=0.9))

    def test_random_sampling_without_a_seed_is_a_fault(self) -> None:
        with pytest.raises(InternalError, match="seed"):
            only(LOGITS, State(SamplingParams(temperature=1.0)))


SETTINGS: list[dict[str, Any]] = [
    {"logprobs": 5},
    {"temperature": 0.0},
    {"top_p": 0.9, "logprobs": 0},
    {"top_k": 40, "temperature": 0.7},
    {"min_p": 0.05, "repetition_penalty": 1.3},
]
PINNED = [0.5531332177299343, 0.9355511531699723, 0.5506789550298109, 0.7282285606234268]


class TestLogprobs:
    def test_are_of_the_unchanged_distribution(self) -> None:
        state = State(params(temperature=0, logprobs=3, presence_penalty=2.0), 1, {0: 1})
        token = only(LOGITS, state)
        expected = LOGITS.log_softmax(-1).tolist()
        assert token.token_id == 1
        assert token.logprob == pytest.approx(expected[1])
        assert [each for each, _ in token.top_logprobs] == [0, 1, 2]
        assert [value for _, value in token.top_logprobs] == pytest.approx(expected[:3])

    def test_each_row_gets_as_many_as_it_asked_for(self) -> None:
        wanted = [None, 0, 2, 20]
        tokens = sample(LOGITS.expand(4, -1), [State(params(logprobs=count)) for count in wanted])
        assert [len(token.top_logprobs) for token in tokens] == [0, 0, 2, 6]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_broken_row_shows_as_nan_and_spares_the_others(self, temperature: float) -> None:
        logits = torch.stack([torch.full((6,), math.nan), LOGITS, torch.full((6,), -math.inf)])
        states = [State(params(temperature=temperature, top_p=0.9, seed=row)) for row in range(3)]
        broken, fine, empty = sample(logits, states)
        assert math.isnan(broken.logprob)
        assert math.isnan(empty.logprob)
        assert fine == only(LOGITS, states[1])


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, 6), []) == []


def test_rows_and_sequences_must_agree() -> None:
    with pytest.raises(InternalError):
        sample(LOGITS[None], [])


def mask_of(*tokens: int) -> bytes:
    return bytes([sum(1 << token for token in tokens)])


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_only_tokens_of_the_grammar_are_chosen(temperature: float) -> None:
    settings = [params(temperature=temperature, seed=seed, top_p=0.9, repetition_penalty=2.0) for seed in range(50)]
    chosen = {only(LOGITS, State(each, token_counts={3: 1}, mask=mask_of(3, 5))).token_id for each in settings}
    assert chosen == ({3} if temperature == 0 else {3, 5})


def test_a_grammar_changes_no_other_row_and_no_log_probability() -> None:
    free, bound = sample(LOGITS.repeat(2, 1), [State(params()), State(params(temperature=0), mask=mask_of(4))])
    assert free == only(LOGITS, State(params()))
    assert bound.logprob == pytest.approx(float(torch.log_softmax(LOGITS, 0)[4]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_that_allows_nothing_fails_its_row_only(temperature: float) -> None:
    states = [State(params(temperature=temperature), mask=b""), State(params())]
    stuck, free = sample(LOGITS.repeat(2, 1), states)
    assert math.isnan(stuck.logprob)
    assert free == only(LOGITS, State(params()))
